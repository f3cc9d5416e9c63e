/* Status codes and errors, used by every function of the library. */
#ifndef MGWFBP_STATUS_H
#define MGWFBP_STATUS_H

#ifdef __cplusplus
#define MGW_BEGIN_DECLS extern "C" {
#define MGW_END_DECLS   }
#else
#define MGW_BEGIN_DECLS
#define MGW_END_DECLS
#endif

/* Everything between the push and the pop at the end of a header is exported from the library. */
#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* One list, so that code and text cannot drift apart: X(name, value, text). */
#define MGW_STATUS_LIST(X)                                                                         \
    X(MGW_OK, 0, "ok")                                                                             \
    X(MGW_ERR_NO_MEMORY, -1, "out of memory")                                                      \
    X(MGW_ERR_ARGUMENT, -2, "invalid argument")                                                    \
    X(MGW_ERR_INPUT, -3, "malformed input")                                                        \
    X(MGW_ERR_IO, -4, "input/output error")                                                        \
    X(MGW_ERR_NOT_FOUND, -5, "no such file or built-in name")                                      \
    X(MGW_ERR_UNSUPPORTED, -6, "not possible with this input")                                     \
    X(MGW_ERR_PEER, -7, "another worker died, left or failed")                                     \
    X(MGW_ERR_TIMEOUT, -8, "another worker did not come in time")

typedef enum mgw_status {
#define X(name, value, text) name = value,
    MGW_STATUS_LIST(X)
#undef X
} mgw_status;

#define MGW_ERROR_MAX 512

/*
 * Describes a failure in one line, without a newline. The caller owns it. Every function that can
 * fail takes a pointer to one, which may be null, and writes it only on failure.
 */
typedef struct mgw_error {
    mgw_status status;
    char message[MGW_ERROR_MAX];
} mgw_error;

#define MGW_CHECKED __attribute__((warn_unused_result))

/* The text of a status, never null. Threads: any. */
const char *mgw_status_text(mgw_status status);

/*
 * Records an error, in one line, for programs that report their own errors the same way. Does
 * nothing if `error` is null. Threads: any.
 */
void mgw_error_record(mgw_error *error, mgw_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The version of the loaded library, "MAJOR.MINOR.PATCH". Threads: any. */
const char *mgw_version(void);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
