/* The channel over TCP: which ranks are admitted, what strangers can do, and the wire format. */
#include "tcp_ranks.h"
#include "transport/tcp_frame.h"

/* ---- Who is let in ---- */

static void hosts_have_many_names(void **unused)
{
    (void)unused;
    char own[256];
    const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]", own};
    size_t count = sizeof hosts / sizeof *hosts;
    if (!own_name(own, sizeof own)) {
        print_message("this host does not know its name: it is not tried\n");
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        int six = socket(AF_INET6, SOCK_STREAM, 0);
        struct sockaddr_in6 loop = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        bool able = six >= 0 && !bind(six, (struct sockaddr *)&loop, sizeof loop);
        if (six >= 0)
            close(six);
        if (hosts[i][0] == '[' && !able) {
            print_message("no IPv6 here: [::1] is not tried\n");
            continue;
        }
        set_port(hosts[i]);
        job j = make_job(3, 20);
        run_processes(&j);
        expect_good(&j);
        end_job(&j);
    }
}

/* From the variables of PyTorch's launcher: its port is taken, ours is the next one. */
static void the_port_is_behind_the_masters(void **unused)
{
    (void)unused;
    char text[16];
    unsigned port = 0;
    unsetenv("MGWFBP_ADDRESS");
    int taken = open_port(&port);
    listen(taken, 1);
    snprintf(text, sizeof text, "%u", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    job j = make_job(2, 20);
    run_processes(&j);
    close(taken);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    expect_good(&j);
    end_job(&j);
}

static void *run_with_socket(void *argument)
{
    rank_start *start = argument;
    rank_result *result = &start->job->results[0];
    unsigned port = 0;
    char text[64];
    int fd = open_port(&port);
    listen(fd, 5);
    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    setenv("MGWFBP_ADDRESS", text, 1);
    pid_t other = start_worker(start->job, 1, NULL);
    snprintf(text, sizeof text, "fd:%d", fd);
    mgw_transport_options options = {
        .name = "tcp", .size = 2, .job = start->job->name, .timeout_s = 20, .address = text};
    mgw_transport *t = NULL;
    result->status = mgw_transport_open(&options, &t, &result->error);
    if (!result->status)
        meet_often(t, result);
    mgw_transport_close(t);
    await(other);
    return NULL;
}

static void rank_0_may_bring_its_socket(void **unused)
{
    (void)unused;
    job j = make_job(2, 20);
    rank_start start = {&j, 0};
    run_with_socket(&start);
    expect_good(&j);
    end_job(&j);
}

static void addresses_must_make_sense(void **unused)
{
    (void)unused;
    char longer[400];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(listen(fd, 1), 0);
    char own[32];
    snprintf(own, sizeof own, "fd:%d", fd);
    const struct {
        const char *address, *host, *port, *words;
    } cases[] = {
        {own, NULL, NULL, "only rank 0 can be given a socket"},
        {"fd:1000", NULL, NULL, "'fd:1000' is not a socket that listens"},
        {"nowhere", NULL, NULL, "'nowhere' is not HOST:PORT"},
        {NULL, longer, "1", "is too long"},
        {NULL, "127.0.0.1", "65535", "not a port from 1 to 65534"},
        {NULL, NULL, NULL, "the address of rank 0 is unknown"},
    };
    unsetenv("MGWFBP_ADDRESS");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].host) {
            setenv("MASTER_ADDR", cases[i].host, 1);
            setenv("MASTER_PORT", cases[i].port, 1);
        }
        mgw_transport_options options = {.name = "tcp",
                                         .rank = 1,
                                         .size = 2,
                                         .job = "address",
                                         .timeout_s = 5,
                                         .address = cases[i].address};
        mgw_transport *t = NULL;
        mgw_error error = {0};
        assert_int_equal(mgw_transport_open(&options, &t, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, cases[i].words);
        unsetenv("MASTER_ADDR");
        unsetenv("MASTER_PORT");
    }
    close(fd);
}

/* Another program listens at rank 0's address, and sends this to every connection. */
static pid_t answer_with(int listener, const char *words)
{
    pid_t child = fork();
    if (child == 0)
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0 && write(fd, words, strlen(words)) >= 0)
                usleep(50 * 1000); /* it closes the connection once that was read */
            close(fd);
        }
    return child;
}

static void others_at_the_address_are_told(void **unused)
{
    (void)unused;
    static const struct {
        const char *answer, *words;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", "is not libmgwfbp"},
        {"", "the connection was cut off"},
    };
    for (size_t i = 0; i < 2; i++) {
        char text[64];
        unsigned port = 0;
        int listener = open_port(&port);
        assert_int_equal(listen(listener, 5), 0);
        snprintf(text, sizeof text, "127.0.0.1:%u", port);
        setenv("MGWFBP_ADDRESS", text, 1);
        job j = make_job(2, 1);
        pid_t other = answer_with(listener, cases[i].answer);
        await(start_worker(&j, 1, NULL));
        kill(other, SIGKILL);
        await(other);
        close(listener);
        assert_int_equal(j.results[1].status, MGW_ERR_TIMEOUT);
        assert_contains(j.results[1].error.message, "rank 0 was not reached at 127.0.0.1");
        assert_contains(j.results[1].error.message, cases[i].words);
        end_job(&j);
    }
}

/* Rank 0 has the first secret, rank 1 the second. */
static void secrets_must_agree(void **unused)
{
    (void)unused;
    static const struct {
        const char *first, *second, *words;
    } cases[] = {
        {"open sesame", "open sesame", NULL},
        {"open sesame", "open barley", "another secret"},
        {"open sesame", "", "it has no secret"},
        {"", "open sesame", "it has a secret"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_port("127.0.0.1");
        job j = make_job(2, 2);
        double begun_s = clock_s();
        pid_t zero = start_worker(&j, 0, cases[i].first);
        pid_t one = start_worker(&j, 1, cases[i].second);
        await(one);
        double took_s = clock_s() - begun_s;
        await(zero);
        if (!cases[i].words) {
            expect_good(&j);
        } else { /* rank 1 at once; a stranger without a secret must not end rank 0's wait */
            assert_int_equal(j.results[1].status, MGW_ERR_PEER);
            assert_contains(j.results[1].error.message, cases[i].words);
            assert_contains(j.results[1].error.message, "MGWFBP_SECRET");
            assert_true(took_s < 1.5);
            assert_int_equal(j.results[0].status, MGW_ERR_TIMEOUT);
            assert_contains(j.results[0].error.message, "rank 1 did not come within 2 s");
            assert_contains(j.results[0].error.message, cases[i].words);
        }
        end_job(&j);
    }
}

/* Rank 0 would wait for 300 s. Of the two missing ranks one may still come, and does; the other was
 * refused, and no replacement comes. */
static void those_who_were_refused_are_not_waited_for(void **unused)
{
    (void)unused;
    set_port("127.0.0.1");
    job j = make_job(3, 300);
    pid_t zero = start_worker(&j, 0, "open sesame");
    pid_t one = start_worker(&j, 1, "open barley");
    await(one);
    usleep(1000 * 1000);
    double begun_s = clock_s();
    pid_t two = start_worker(&j, 2, "open sesame");
    await(zero);
    await(two);
    double took_s = clock_s() - begun_s;
    assert_true(took_s > 9.9 && took_s < 20); /* from then on */
    for (unsigned r = 0; r < 3; r += 2) {
        assert_int_equal(j.results[r].status, MGW_ERR_PEER);
        assert_contains(j.results[r].error.message, "rank 1 did not come");
        assert_contains(j.results[r].error.message, "from 127.0.0.1: it has another secret");
    }
    end_job(&j);
}

/* A rank that comes with the right secret later is admitted as usual. */
static void the_refused_may_be_replaced(void **unused)
{
    (void)unused;
    set_port("127.0.0.1");
    job j = make_job(2, 300);
    pid_t zero = start_worker(&j, 0, "open sesame");
    await(start_worker(&j, 1, "open barley"));
    await(start_worker(&j, 1, "open sesame"));
    await(zero);
    expect_good(&j);
    end_job(&j);
}

/* ---- By hand: a worker, or a hub, of another kind ---- */

static void say(int fd, tcp_kind kind, const unsigned char *data, size_t bytes)
{
    unsigned char frame[TCP_HEADER + TCP_HELLO_MOST];
    tcp_header_write(&(tcp_header){.kind = kind, .bytes = (uint32_t)bytes}, frame);
    memcpy(frame + TCP_HEADER, data, bytes);
    assert_int_equal(send(fd, frame, TCP_HEADER + bytes, MSG_NOSIGNAL), TCP_HEADER + bytes);
}

/* The kind of the next frame, or 0 at the end. */
static int hear(int fd, unsigned char data[TCP_HELLO_MOST], size_t *bytes)
{
    unsigned char head[TCP_HEADER];
    tcp_header header;
    if (recv(fd, head, sizeof head, MSG_WAITALL) != sizeof head)
        return 0;
    assert_true(tcp_header_read(head, &header));
    assert_int_equal(recv(fd, data, header.bytes, MSG_WAITALL), header.bytes);
    *bytes = header.bytes;
    data[*bytes] = 0;
    return (int)header.kind;
}

static tcp_hello hello_of(const job *j, unsigned rank, unsigned size)
{
    tcp_hello hello = {.protocol = TCP_PROTOCOL, .size = size, .rank = rank};
    snprintf(hello.version, sizeof hello.version, "%s", mgw_version());
    snprintf(hello.job, sizeof hello.job, "%s", j->name);
    return hello;
}

/* Sends a greeting without a proof; returns the connection, and the last answer. */
static int visit_as(unsigned port, const tcp_hello *hello, int *answer, char text[TCP_TEXT])
{
    unsigned char data[TCP_HELLO_MOST + 1];
    unsigned char nothing[TCP_MAC] = {0};
    size_t bytes = tcp_hello_write(hello, data);
    int fd = connect_to(port);
    say(fd, TCP_HELLO, data, bytes);
    *answer = hear(fd, data, &bytes);
    if (*answer == TCP_CHALLENGE) {
        say(fd, TCP_PROOF, nothing, sizeof nothing);
        *answer = hear(fd, data, &bytes);
    }
    tcp_text_read(data, bytes, text);
    return fd;
}

static void change_version(tcp_hello *hello)
{
    snprintf(hello->version, sizeof hello->version, "99.1.2");
}

static void change_size(tcp_hello *hello)
{
    hello->size = 5;
}

static void change_rank(tcp_hello *hello)
{
    hello->rank = 7;
}

static void be_rank_0(tcp_hello *hello)
{
    hello->rank = 0;
}

static void change_order(tcp_hello *hello)
{
    hello->flags ^= TCP_IS_BIG;
}

/* A rank that belongs to the job but does not match it ends the job at once, and all ranks learn
 * why. */
static void misfits_end_the_job(void **unused)
{
    (void)unused;
    static const struct {
        void (*change)(tcp_hello *);
        const char *words;
    } cases[] = {{change_version, "has libmgwfbp 99.1.2, rank 0 has"},
                 {change_size, "rank 1 of 5 has come, but this is a job of 3"},
                 {change_rank, "rank 7 of 3 has come"},
                 {be_rank_0, "has that rank already"},
                 {change_order, "another order of bytes"}};
    unsigned char data[TCP_HELLO_MOST + 1];
    size_t bytes = 0;
    char text[TCP_TEXT];
    int answer = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned port = set_port("127.0.0.1");
        job j = make_job(3, 20);
        double begun_s = clock_s();
        pid_t zero = start_worker(&j, 0, NULL);
        tcp_hello hello = hello_of(&j, 2, 3);
        int two = visit_as(port, &hello, &answer, text);
        assert_int_equal(answer, TCP_WELCOME);
        hello = hello_of(&j, 1, 3);
        cases[i].change(&hello);
        int fd = visit_as(port, &hello, &answer, text);
        assert_int_equal(answer, TCP_REFUSED);
        assert_contains(text, cases[i].words);
        await(zero);
        assert_true(clock_s() - begun_s < 10);
        assert_int_equal(j.results[0].status, MGW_ERR_PEER);
        assert_contains(j.results[0].error.message, cases[i].words);
        assert_int_equal(hear(two, data, &bytes), TCP_ENDED);
        assert_contains((const char *)data, cases[i].words);
        close(two);
        close(fd);
        end_job(&j);
    }
}

/* Two workers that are both rank 1. */
static void ranks_are_unique(void **unused)
{
    (void)unused;
    set_port("127.0.0.1");
    job j = make_job(3, 20);
    job twin = j;
    twin.results = mmap(NULL, 64 * sizeof *j.results, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t workers[] = {start_worker(&j, 0, NULL), start_worker(&j, 1, NULL),
                       start_worker(&twin, 1, NULL)};
    for (size_t i = 0; i < 3; i++)
        await(workers[i]);
    assert_contains(j.results[0].error.message, "has that rank already");
    assert_contains(j.results[1].error.message, "has that rank already");
    assert_contains(twin.results[1].error.message, "has that rank already");
    end_job(&twin);
    end_job(&j);
}

static void another_job_does_no_harm(void **unused)
{
    (void)unused;
    char text[TCP_TEXT];
    int answer = 0;
    unsigned port = set_port("127.0.0.1");
    job j = make_job(2, 20);
    pid_t zero = start_worker(&j, 0, NULL);
    tcp_hello hello = hello_of(&j, 1, 2);
    strcat(hello.job, "x");
    close(visit_as(port, &hello, &answer, text));
    assert_int_equal(answer, TCP_REFUSED);
    assert_contains(text, "another job");
    hello = (tcp_hello){.protocol = TCP_PROTOCOL + 1};
    close(visit_as(port, &hello, &answer, text));
    assert_contains(text, "another protocol");
    pid_t one = start_worker(&j, 1, NULL);
    await(zero);
    await(one);
    expect_good(&j);
    end_job(&j);
}

/* A hub without the secret learns nothing about it, and gets no workers. */
static void hubs_must_prove_themselves(void **unused)
{
    (void)unused;
    unsigned port = 0;
    unsigned char data[TCP_HELLO_MOST + 1];
    unsigned char all[2 * TCP_HELLO_MOST] = {0};
    size_t bytes = 0;
    char text[32];
    tcp_challenge challenge = {.protocol = TCP_PROTOCOL, .flags = TCP_HAS_SECRET};
    snprintf(challenge.version, sizeof challenge.version, "%s", mgw_version());
    int listener = open_port(&port);
    listen(listener, 5);
    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    setenv("MGWFBP_ADDRESS", text, 1);
    job j = make_job(2, 1);
    pid_t one = start_worker(&j, 1, "open sesame");
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(hear(fd, data, &bytes), TCP_HELLO);
    memcpy(all, data, bytes);
    size_t heard = bytes;
    bytes = tcp_challenge_write(&challenge, data);
    say(fd, TCP_CHALLENGE, data, bytes);
    assert_int_equal(hear(fd, data, &bytes), TCP_PROOF);
    memcpy(all + heard, data, bytes);
    assert_null(memmem(all, sizeof all, "sesame", 6));
    say(fd, TCP_WELCOME, (const unsigned char[TCP_MAC]){1}, TCP_MAC);
    await(one);
    close(fd);
    close(listener);
    assert_int_equal(j.results[1].status, MGW_ERR_TIMEOUT);
    assert_contains(j.results[1].error.message, "within 1 s");
    end_job(&j);
}

static void bad_places(void **unused)
{
    (void)unused;
    static const struct {
        const char *address, *master, *port, *words;
        unsigned rank;
        mgw_status status;
    } cases[] = {
        {NULL, NULL, NULL, "set MGWFBP_ADDRESS", 0, MGW_ERR_ARGUMENT},
        {NULL, "localhost", "x", "MASTER_PORT: 'x'", 0, MGW_ERR_ARGUMENT},
        {NULL, "localhost", "65535", "MASTER_PORT: '65535'", 1, MGW_ERR_ARGUMENT},
        {"nowhere", NULL, NULL, "'nowhere' is not HOST:PORT", 1, MGW_ERR_ARGUMENT},
        {":80", NULL, NULL, "is not HOST:PORT", 1, MGW_ERR_ARGUMENT},
        {"a:0", NULL, NULL, "is not HOST:PORT", 1, MGW_ERR_ARGUMENT},
        {"a:65536", NULL, NULL, "is not HOST:PORT", 1, MGW_ERR_ARGUMENT},
        {"a:1x", NULL, NULL, "is not HOST:PORT", 1, MGW_ERR_ARGUMENT},
        {"fd:0", NULL, NULL, "is not a socket that listens", 0, MGW_ERR_ARGUMENT},
        {"no.such.host.invalid:9", NULL, NULL, "cannot be resolved", 1, MGW_ERR_TIMEOUT},
        {"127.0.0.1:1", NULL, NULL, "rank 0 was not reached at 127.0.0.1:1 within 0.3 s", 1,
         MGW_ERR_TIMEOUT},
    };
    mgw_transport *t = NULL;
    mgw_error error = {0};
    unsetenv("MGWFBP_ADDRESS");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_transport_options options = {.name = "tcp",
                                         .rank = cases[i].rank,
                                         .size = 2,
                                         .job = "j",
                                         .timeout_s = 0.3,
                                         .address = cases[i].address};
        cases[i].master ? setenv("MASTER_ADDR", cases[i].master, 1) : unsetenv("MASTER_ADDR");
        cases[i].port ? setenv("MASTER_PORT", cases[i].port, 1) : unsetenv("MASTER_PORT");
        assert_int_equal(mgw_transport_open(&options, &t, &error), cases[i].status);
        assert_contains(error.message, cases[i].words);
    }
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    char job_name[600];
    memset(job_name, 'j', sizeof job_name - 1);
    job_name[sizeof job_name - 1] = '\0';
    mgw_transport_options options = {.name = "tcp", .size = 2, .job = job_name, .address = "a:1"};
    assert_int_equal(mgw_transport_open(&options, &t, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "more than 512 bytes");
    options = (mgw_transport_options){.name = "tcp", .size = 5000, .job = "j", .address = "a:1"};
    assert_int_equal(mgw_transport_open(&options, &t, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "at most 4096 workers");
}

static void taken_ports_are_told(void **unused)
{
    (void)unused;
    unsigned port = 0;
    char text[32];
    mgw_transport *t = NULL;
    mgw_error error = {0};
    int taken = open_port(&port);
    listen(taken, 1);
    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    mgw_transport_options options = {
        .name = "tcp", .size = 2, .job = "j", .timeout_s = 20, .address = text};
    double begun_s = clock_s();
    assert_int_equal(mgw_transport_open(&options, &t, &error), MGW_ERR_IO);
    assert_contains(error.message, "the port is in use; set MGWFBP_ADDRESS");
    assert_true(clock_s() - begun_s < 2);
    close(taken);
}

/* ---- Strangers ---- */

/* Invalid data, half a greeting, silence, very many connections, and one that is closed. */
static void strangers_do_no_harm(void **unused)
{
    (void)unused;
    enum { SILENT = 300 };
    static int silent[SILENT];
    unsigned char data[TCP_HELLO_MOST + TCP_HEADER];
    uint64_t random = 3;
    unsigned port = set_port("127.0.0.1");
    job j = make_job(3, 20);
    pid_t workers[3] = {start_worker(&j, 0, NULL)};
    for (int i = 0; i < SILENT; i++)
        silent[i] = connect_to(port);
    for (int i = 0; i < 100; i++) {
        int fd = connect_to(port);
        size_t bytes = random_below(&random, sizeof data);
        for (size_t k = 0; k < bytes; k++)
            data[k] = (unsigned char)random_below(&random, 256);
        if (i % 2) /* a header that announces more than follows, or more than is allowed */
            tcp_header_write(&(tcp_header){.kind = (tcp_kind)(1 + i / 2 % (TCP_KINDS - 1)),
                                           .bytes = (uint32_t)random_below(&random, 1 << 20)},
                             data);
        send(fd, data, bytes, MSG_NOSIGNAL);
        if (i % 3)
            close(fd);
    }
    tcp_hello hello = hello_of(&j, 1, 3);
    int half = connect_to(port);
    size_t bytes = tcp_hello_write(&hello, data + TCP_HEADER);
    tcp_header_write(&(tcp_header){.kind = TCP_HELLO, .bytes = (uint32_t)bytes}, data);
    send(half, data, TCP_HEADER + bytes / 2, MSG_NOSIGNAL);
    double begun_s = clock_s();
    workers[1] = start_worker(&j, 1, NULL);
    workers[2] = start_worker(&j, 2, NULL);
    for (int i = 0; i < 3; i++)
        await(workers[i]);
    assert_true(clock_s() - begun_s < 4);
    expect_good(&j);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    close(half);
    end_job(&j);
}

/* Disconnected after 5 s, so that it blocks nobody. */
static void who_says_nothing_is_sent_away(void **unused)
{
    (void)unused;
    char byte = 0;
    unsigned port = set_port("127.0.0.1");
    job j = make_job(2, 20);
    pid_t zero = start_worker(&j, 0, NULL);
    int fd = connect_to(port);
    double begun_s = clock_s();
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_true(clock_s() - begun_s < 8);
    close(fd);
    pid_t one = start_worker(&j, 1, NULL);
    await(zero);
    await(one);
    expect_good(&j);
    end_job(&j);
}

/* ---- Frames ---- */

static void frames_are_read_back(void **unused)
{
    (void)unused;
    uint64_t random = 11;
    for (int i = 0; i < 20000; i++) {
        tcp_header header = {.kind = (tcp_kind)(1 + random_below(&random, TCP_KINDS - 1)),
                             .rank = (uint32_t)random_below(&random, 1u << 31),
                             .bytes = (uint32_t)random_below(&random, 2 * TCP_PIECE),
                             .number = random_below(&random, UINT64_MAX),
                             .call = random_below(&random, UINT64_MAX)};
        tcp_header again;
        unsigned char data[TCP_HEADER];
        tcp_header_write(&header, data);
        bool good = tcp_header_read(data, &again);
        if (good) {
            assert_int_equal(again.kind, header.kind);
            assert_int_equal(again.rank, header.rank);
            assert_int_equal(again.bytes, header.bytes);
            assert_true(again.number == header.number && again.call == header.call);
        }
        bool numbers = header.kind == TCP_CALL || header.kind == TCP_RESULT;
        assert_int_equal(good && header.bytes >= TCP_HELLO_MOST + 1,
                         numbers && header.bytes <= TCP_PIECE && header.bytes > TCP_HELLO_MOST);
        data[random_below(&random, 4)] ^= 1;
        assert_false(tcp_header_read(data, &again));
    }
    tcp_hello hello = {
        .protocol = TCP_PROTOCOL, .flags = 1, .size = 9, .rank = 4, .version = "1.2"};
    tcp_hello heard;
    unsigned char data[TCP_HELLO_MOST];
    memset(hello.job, 'x', TCP_JOB);
    size_t bytes = tcp_hello_write(&hello, data);
    assert_int_equal(bytes, TCP_HELLO_MOST);
    assert_true(tcp_hello_read(data, bytes, &heard));
    assert_memory_equal(&heard, &hello, sizeof hello);
    for (size_t less = 0; less < TCP_HELLO_LEAST; less++)
        assert_false(tcp_hello_read(data, less, &heard));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_have_many_names),
        cmocka_unit_test(the_port_is_behind_the_masters),
        cmocka_unit_test(rank_0_may_bring_its_socket),
        cmocka_unit_test(addresses_must_make_sense),
        cmocka_unit_test(others_at_the_address_are_told),
        cmocka_unit_test(secrets_must_agree),
        cmocka_unit_test(those_who_were_refused_are_not_waited_for),
        cmocka_unit_test(the_refused_may_be_replaced),
        cmocka_unit_test(misfits_end_the_job),
        cmocka_unit_test(ranks_are_unique),
        cmocka_unit_test(another_job_does_no_harm),
        cmocka_unit_test(hubs_must_prove_themselves),
        cmocka_unit_test(bad_places),
        cmocka_unit_test(taken_ports_are_told),
        cmocka_unit_test(strangers_do_no_harm),
        cmocka_unit_test(who_says_nothing_is_sent_away),
        cmocka_unit_test(frames_are_read_back),
    };
    unsetenv("MGWFBP_SECRET");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
