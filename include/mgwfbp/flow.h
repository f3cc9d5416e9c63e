/*
 * The flow of one worker's steps: which operation of the plan may start next.
 *
 * It is only a state machine: no threads, no clock, no I/O. A driver tells it what happened, asks
 * what may happen, and moves the bytes. The engine's communication thread is one driver, Python's
 * process groups are another, and tests use a virtual clock.
 *
 *     mgw_flow_adopt(flow, operations, count, &error);    between steps, on all workers
 *     mgw_flow_begin(flow, now_s, &error);
 *     if (mgw_flow_ready(flow, id, now_s))                a gradient is ready: on any thread
 *         while (mgw_flow_next(flow, &operation)) {       on the driver's thread
 *             ... do it ...
 *             mgw_flow_done(flow, operation, start_s, end_s);
 *         }
 *     mgw_flow_averaged(flow)                             whether all gradients are averaged
 *
 * Workers with the same plan get the same operations in the same order: an early or late gradient
 * changes when an operation is handed out, never which.
 */
#ifndef MGWFBP_FLOW_H
#define MGWFBP_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_flow mgw_flow;

#define MGW_NO_OPERATION SIZE_MAX

/*
 * For tensors 0 .. tensor_count-1, at least one. There are no operations yet: adopt comes first.
 * Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_flow_create(size_t tensor_count, mgw_flow **out, mgw_error *error);
void mgw_flow_destroy(mgw_flow *flow);

/* ---- The driver's, on one thread at a time ---- */

/*
 * Uses these operations from the next begin on; they are copied. Each tensor must be in exactly one
 * all-reduce or reduce-scatter. If it is in a reduce-scatter, it must be in exactly one later
 * all-gather, otherwise in none. All-gathers are released after the backward pass or after the
 * update, all others when ready or after the backward pass.
 */
MGW_CHECKED mgw_status mgw_flow_adopt(mgw_flow *flow, const mgw_operation *operations, size_t count,
                                      mgw_error *error);

/*
 * Begins a step. All gradients of the previous step must be averaged; its all-gathers may still be
 * open, unless another plan was adopted.
 */
MGW_CHECKED mgw_status mgw_flow_begin(mgw_flow *flow, double now_s, mgw_error *error);

/*
 * Hands out the next operation in plan order, if its release rule holds and those before it were
 * handed out. The driver decides whether operations that were handed out overlap.
 */
bool mgw_flow_next(mgw_flow *flow, size_t *operation);

/* The operation that `next` will hand out, whether or not it may start yet; MGW_NO_OPERATION: one
 * of a step that has not begun. */
size_t mgw_flow_turn(const mgw_flow *flow);

/* An operation that was handed out is over. */
void mgw_flow_done(mgw_flow *flow, size_t operation, double start_s, double end_s);

/* Whether all gradients of the step are averaged: its all-reduces and reduce-scatters are over. */
bool mgw_flow_averaged(const mgw_flow *flow);

/* Whether the all-gathers of earlier steps are over; with `all`, including those of this step. */
bool mgw_flow_gathered(const mgw_flow *flow, bool all);

/* The all-gather of the previous step that this step's forward pass must wait for before it uses
 * the tensor; MGW_NO_OPERATION if the tensor is complete. */
size_t mgw_flow_need(const mgw_flow *flow, unsigned id);

/* ---- Reports: any thread, several at once, wait-free ---- */

/*
 * The gradient of a tensor is ready. Returns whether another operation may start now, so that it is
 * worth calling `next`. A tensor that is not due (unknown, ready twice, outside a step) is
 * remembered: see mgw_flow_trouble.
 */
bool mgw_flow_ready(mgw_flow *flow, unsigned id, double now_s);

/*
 * The same in three parts, for drivers with something to do in between. Claim: returns whether the
 * tensor is due, once per step. Arrive: the gradient is ready; returns the operation that it
 * completes, or MGW_NO_OPERATION. Release: that operation may start.
 */
bool mgw_flow_claim(mgw_flow *flow, unsigned id);
size_t mgw_flow_arrive(mgw_flow *flow, unsigned id, double now_s);
void mgw_flow_release(mgw_flow *flow, size_t operation);

/* As ready, for `count` tensors; times are by tensor. */
bool mgw_flow_ready_all(mgw_flow *flow, const unsigned *ids, size_t count, const double *at_s);

/* The parameters of a tensor were updated, after its operation was over and before its next
 * gradient is ready. Returns the same as ready. May come during the backward pass or during the
 * next step's forward pass. */
bool mgw_flow_updated(mgw_flow *flow, unsigned id);

/* ---- Queries: between steps or on the driver's thread ---- */

/* The operations of the step that was begun last, with the times of that step. */
const mgw_operation *mgw_flow_operations(const mgw_flow *flow, size_t *count);

/* How many plans have been used so far; the number changes whenever the operations do. */
uint64_t mgw_flow_plans(const mgw_flow *flow);

/* By tensor: when it was ready in the step that was begun last, from its begin. May be overwritten
 * by a driver that knows better. */
double *mgw_flow_ready_times(mgw_flow *flow);

double mgw_flow_begun_s(const mgw_flow *flow);
uint64_t mgw_flow_step(const mgw_flow *flow); /* counts from 1; 0: none was begun */

/* Whether the tensor was reported in this step. */
bool mgw_flow_has(const mgw_flow *flow, unsigned id);

/* A tensor that was reported but not due; false: there is none. */
bool mgw_flow_trouble(const mgw_flow *flow, unsigned *id);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
