/*
 * Serves the page over HTTP with libmicrohttpd: one page and three kinds of POST requests.
 *
 * Only this machine and our own pages are answered. The socket is bound to 127.0.0.1. Requests with
 * a foreign Host (a foreign name that points to 127.0.0.1) or a foreign Origin, and posts without
 * our own header, which pages of other sites cannot send, are refused. Connections of other users
 * of this machine are not accepted, and every request needs the token, which is part of the printed
 * address.
 */
#include "cli/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/command.h"

enum { UPLOAD_MAX = 64 << 20, TOKEN_BYTES = 16 };

/* Maximum number of connections, and idle timeout, so that idle ones do not block others. */
enum { CONNECTIONS_MAX = 512, IDLE_S = 10 };

typedef struct server {
    mgw_page **page; /* while the server runs, used only by its thread */
    unsigned port;
    char hosts[2][32];
    char token[2 * TOKEN_BYTES + 1];
} server;

/* A request whose body is arriving. */
typedef struct upload {
    mgw_text body;
    bool ours; /* otherwise its body is discarded */
    bool too_large;
} upload;

/* ---- Answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              mgw_text *text)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy", "frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-store"},
    };
    if (text->failed) {
        mgw_text_fini(text);
        mgw_text_append(text, "out of memory\n", 14);
        code = MHD_HTTP_INTERNAL_SERVER_ERROR;
        type = "text/plain; charset=utf-8";
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(text->size, text->data, MHD_RESPMEM_MUST_COPY);
    mgw_text_fini(text);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned code, const char *why)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_text_printf(&text, "%s\n", why);
    return answer(connection, code, "text/plain; charset=utf-8", &text);
}

static enum MHD_Result answer_page(struct MHD_Connection *connection, const mgw_page *page)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_page_write(page, true, &text);
    return answer(connection, MHD_HTTP_OK, "text/html; charset=utf-8", &text);
}

static enum MHD_Result answer_data(struct MHD_Connection *connection, const mgw_page *page)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_page_write_data(page, &text);
    return answer(connection, MHD_HTTP_OK, "application/json", &text);
}

/* ---- POST requests ---- */

static mgw_status add_file(server *s, const char *name, const upload *u, mgw_error *error)
{
    return mgw_page_add(*s->page, name, u->body.data ? u->body.data : "", u->body.size, error);
}

/* Finds the name in the list, so that no path is ever opened. */
static mgw_status add_builtin(server *s, const char *name, const upload *u, mgw_error *error)
{
    (void)u;
    size_t count = 0;
    const mgw_builtin *builtins = mgw_builtin_list(&count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(builtins[i].name, name))
            return mgw_page_add(*s->page, name, builtins[i].text, builtins[i].size, error);
    return cli_fail(error, "%.80s: no built-in of that name", name);
}

static mgw_status clear(server *s, const char *name, const upload *u, mgw_error *error)
{
    (void)name, (void)u;
    mgw_page *fresh = NULL;
    mgw_status status = mgw_page_create(&fresh, error);
    if (status)
        return status;
    mgw_page_destroy(*s->page);
    *s->page = fresh;
    return MGW_OK;
}

static const struct {
    const char *path;
    mgw_status (*act)(server *s, const char *name, const upload *u, mgw_error *error);
} actions[] = {{"/add", add_file}, {"/builtin", add_builtin}, {"/clear", clear}};

/* Whether the request comes from our own page: pages of other sites cannot send this header. */
static bool is_posted_by_us(struct MHD_Connection *connection)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Mgwfbp") != NULL;
}

static enum MHD_Result post(server *s, struct MHD_Connection *connection, const char *path,
                            const upload *u)
{
    const char *name = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "name");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        if (strcmp(actions[i].path, path) != 0)
            continue;
        if (!is_posted_by_us(connection))
            return refuse(connection, MHD_HTTP_FORBIDDEN,
                          "the request does not come from this page");
        if (u->too_large)
            return refuse(connection, MHD_HTTP_CONTENT_TOO_LARGE,
                          "the file is larger than 64 MiB; 'mgwfbp report' takes any size");
        mgw_error error = {0};
        if (actions[i].act(s, name ? name : "file", u, &error))
            return refuse(connection, MHD_HTTP_BAD_REQUEST, error.message);
        return answer_data(connection, *s->page);
    }
    return refuse(connection, MHD_HTTP_NOT_FOUND, "not found");
}

/* ---- Requests ---- */

static bool is_ours(const server *s, struct MHD_Connection *connection)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Origin");
    for (size_t i = 0; host && i < 2; i++)
        if (!strcmp(host, s->hosts[i]))
            return !origin || (!strncmp(origin, "http://", 7) && !strcmp(origin + 7, host));
    return false;
}

/* The part after "/TOKEN" in a path, or null. Compares in constant time. */
static const char *behind_token(const server *s, const char *path)
{
    size_t length = strlen(s->token);
    if (strlen(path) < length + 2 || path[0] != '/' || path[length + 1] != '/')
        return NULL;
    unsigned char differs = 0;
    for (size_t i = 0; i < length; i++)
        differs |= (unsigned char)(path[1 + i] ^ s->token[i]);
    return differs ? NULL : path + length + 1;
}

static enum MHD_Result refuse_host(struct MHD_Connection *connection)
{
    return refuse(connection, MHD_HTTP_FORBIDDEN,
                  "host not allowed; open the address that 'mgwfbp serve' has printed");
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **request)
{
    (void)version;
    server *s = context;
    upload *u = *request;
    if (!u) { /* the headers have arrived; a body may follow */
        u = *request = calloc(1, sizeof *u);
        if (u)
            u->ours =
                is_ours(s, connection) && is_posted_by_us(connection) && behind_token(s, path);
        return u ? MHD_YES : MHD_NO;
    }
    if (*size) {
        u->too_large |= u->body.size + *size > UPLOAD_MAX || u->body.failed;
        if (u->too_large)
            mgw_text_fini(&u->body);
        else if (u->ours)
            mgw_text_append(&u->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!is_ours(s, connection))
        return refuse_host(connection);
    path = behind_token(s, path);
    if (!path)
        return refuse(connection, MHD_HTTP_FORBIDDEN,
                      "open the whole address that 'mgwfbp serve' has printed: it ends in a token");
    if (!strcmp(method, MHD_HTTP_METHOD_POST))
        return post(s, connection, path, u);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and POST are supported");
    if (strcmp(path, "/") != 0)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "not found");
    return answer_page(connection, *s->page);
}

static void end_request(void *context, struct MHD_Connection *connection, void **request,
                        enum MHD_RequestTerminationCode code)
{
    (void)context, (void)connection, (void)code;
    upload *u = *request;
    if (u)
        mgw_text_fini(&u->body);
    free(u);
    *request = NULL;
}

/* ---- Access control ---- */

/* Finds the user at the other end of a connection to our port on this machine; false: unknown.
 * Connections from one port may belong to different users. */
static bool find_user(const struct sockaddr_in *peer, unsigned port_here, unsigned *user)
{
    FILE *sockets = fopen("/proc/net/tcp", "re");
    char line[512];
    bool found = false;
    while (sockets && !found && fgets(line, sizeof line, sockets)) {
        unsigned address = 0;
        unsigned port = 0;
        unsigned there = 0;
        unsigned port_there = 0;
        found = sscanf(line, "%*d: %x:%x %x:%x %*x %*x:%*x %*x:%*x %*x %u", &address, &port, &there,
                       &port_there, user) == 5 &&
                address == peer->sin_addr.s_addr && port == ntohs(peer->sin_port) &&
                there == htonl(INADDR_LOOPBACK) && port_there == port_here;
    }
    if (sockets)
        fclose(sockets);
    return found;
}

/* Accepts connections of this user and root only, so that others cannot block us. */
static enum MHD_Result may_connect(void *context, const struct sockaddr *address, socklen_t length)
{
    const server *s = context;
    unsigned user = 0;
    if (length < sizeof(struct sockaddr_in) || address->sa_family != AF_INET)
        return MHD_NO;
    if (!find_user((const struct sockaddr_in *)(const void *)address, s->port, &user))
        return MHD_YES; /* the token is still required */
    return user == getuid() || user == 0 ? MHD_YES : MHD_NO;
}

static mgw_status make_token(server *s, mgw_error *error)
{
    unsigned char bytes[TOKEN_BYTES];
    ssize_t got = 0;
    while ((got = getrandom(bytes, sizeof bytes, 0)) < 0 && errno == EINTR)
        continue;
    if (got != sizeof bytes)
        return cli_fail(error, "cannot get random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        sprintf(s->token + 2 * i, "%02x", bytes[i]);
    return MGW_OK;
}

/* ---- The server ---- */

/* Opens a listening socket on 127.0.0.1; sets *port to its port. */
static mgw_status listen_on(unsigned *port, int *out, mgw_error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 16) ||
        getsockname(fd, (struct sockaddr *)&address, &length)) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return cli_fail(error, "port %u: %s%s", *port, strerror(code),
                        code == EADDRINUSE ? " (choose another with --port; 0 picks a free one)"
                                           : "");
    }
    *port = ntohs(address.sin_port);
    *out = fd;
    return MGW_OK;
}

mgw_status cli_serve_page(mgw_page **page, unsigned port, mgw_error *error)
{
    int fd = -1;
    mgw_status status = listen_on(&port, &fd, error);
    server s = {.page = page, .port = port};
    if (!status)
        status = make_token(&s, error);
    if (status) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    snprintf(s.hosts[0], sizeof s.hosts[0], "127.0.0.1:%u", port);
    snprintf(s.hosts[1], sizeof s.hosts[1], "localhost:%u", port);
    sigset_t ends; /* blocked before the server's thread starts, so that only sigwait gets them */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0, may_connect, &s, handle,
                         &s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                         MHD_OPTION_NOTIFY_COMPLETED, end_request, NULL, MHD_OPTION_END);
    if (!daemon) {
        close(fd);
        return cli_fail(error, "port %u: the server does not start", port);
    }
    printf("http://127.0.0.1:%u/%s/  (Ctrl-C ends)\n", port, s.token);
    if (fflush(stdout)) /* otherwise the address would be unknown */
        status = cli_fail(error, "standard output: %s", strerror(errno));
    int caught = 0;
    if (!status)
        sigwait(&ends, &caught);
    sigprocmask(SIG_UNBLOCK, &ends, NULL); /* a second signal ends at once, even while planning */
    MHD_stop_daemon(daemon);
    return status;
}
