/*
 * libmgwfbp: merged-gradient communication for data-parallel training.
 *
 * Data flows one way, and there is one header per stage:
 *
 *     trace.h + cluster.h  ->  plan.h  ->  sim.h  ->  timeline.h  ->  report.h
 *
 * A trace lists the gradient tensors of a model in the order in which they become ready. A cluster
 * is the cost of collectives. A plan merges neighbouring gradients into messages. Simulating a plan
 * gives a timeline. Reports are tables and pictures of all of these.
 */
#ifndef MGWFBP_MGWFBP_H
#define MGWFBP_MGWFBP_H

#include <mgwfbp/advise.h>
#include <mgwfbp/cluster.h>
#include <mgwfbp/data.h>
#include <mgwfbp/device.h>
#include <mgwfbp/dtype.h>
#include <mgwfbp/engine.h>
#include <mgwfbp/flow.h>
#include <mgwfbp/layout.h>
#include <mgwfbp/notes.h>
#include <mgwfbp/outlook.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/profile.h>
#include <mgwfbp/report.h>
#include <mgwfbp/shards.h>
#include <mgwfbp/sim.h>
#include <mgwfbp/status.h>
#include <mgwfbp/text.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/trace.h>
#include <mgwfbp/transport.h>
#include <mgwfbp/trial.h>
#include <mgwfbp/tune.h>

#endif
