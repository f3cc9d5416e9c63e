/*
 * Proves knowledge of a job's secret without sending it: HMAC-SHA256 from OpenSSL's libcrypto,
 * which is loaded on demand.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/status.h"
#include "device/cuda.h"
#include "transport/tcp.h"

/* As declared by OpenSSL since 1.1.0. */
typedef struct crypto {
    const void *(*sha256)(void);
    unsigned char *(*hmac)(const void *digest, const void *key, int key_bytes,
                           const unsigned char *data, size_t bytes, unsigned char *out,
                           unsigned *out_bytes);
} crypto;

static crypto library;
static mgw_error load_error;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void load(void)
{
    static const char *const names[] = {"EVP_sha256", "HMAC"};
    static const char *const files[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
    const char *advice = "MGWFBP_SECRET needs it (OpenSSL's; Debian's package libssl3)";
    load_error.status = mgw_device_library(files[0], advice, names, sizeof names / sizeof *names,
                                           &library, &load_error);
    if (load_error.status &&
        !mgw_device_library(files[1], advice, names, sizeof names / sizeof *names, &library, NULL))
        load_error.status = MGW_OK;
}

mgw_status tcp_secret_prepare(mgw_error *error)
{
    pthread_once(&loaded, load);
    return load_error.status ? mgw_fail(error, load_error.status, "%s", load_error.message)
                             : MGW_OK;
}

void tcp_secret_prove(const char *secret, const char *label, const tcp_hello *hello,
                      const tcp_challenge *challenge, unsigned char out[TCP_MAC])
{
    unsigned char said[16 + 4 + TCP_HELLO_MOST + TCP_CHALLENGE_SIZE] = {0};
    unsigned written = 0;
    memset(out, 0, TCP_MAC);
    if (!secret)
        return;
    memcpy(said, label, strnlen(label, 16));
    size_t bytes = tcp_hello_write(hello, said + 20);
    said[16] = (unsigned char)bytes;
    said[17] = (unsigned char)(bytes >> 8);
    bytes += 20;
    bytes += tcp_challenge_write(challenge, said + bytes);
    library.hmac(library.sha256(), secret, (int)strlen(secret), said, bytes, out, &written);
}

bool tcp_secret_equal(const unsigned char *x, const unsigned char *y)
{
    volatile unsigned char differ = 0;
    for (size_t i = 0; i < TCP_MAC; i++)
        differ |= x[i] ^ y[i];
    return !differ;
}

mgw_status tcp_secret_nonce(unsigned char out[TCP_NONCE], mgw_error *error)
{
    for (size_t got = 0; got < TCP_NONCE;) {
        ssize_t more = getrandom(out + got, TCP_NONCE - got, 0);
        if (more < 0 && errno != EINTR)
            return mgw_fail(error, MGW_ERR_IO, "tcp: no random numbers: %s", strerror(errno));
        got += more > 0 ? (size_t)more : 0;
    }
    return MGW_OK;
}
