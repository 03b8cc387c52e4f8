/* The native board: the app as a host process that speaks frames over standard streams or one TCP connection.
 *
 *   zo_board [--memory MIB] [--threads N] [--listen HOST:PORT]
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "app/app.h"

enum { DEFAULT_MEMORY_MIB = 1024, MAX_MEMORY_MIB = 3 * 1024 }; /* the protocol's sizes have 32 bits */

static struct app app;
static struct {
    struct port_region memory; /* one region for every purpose but the weights of a compiled network */
    struct port_region weights;
    int in, out;
    unsigned workers;
} board = {.in = STDIN_FILENO, .out = STDOUT_FILENO, .workers = 1};

struct port_region *port_region(enum port_purpose purpose)
{
    return purpose == PORT_WEIGHTS && board.weights.base ? &board.weights : &board.memory;
}

struct port_region *port_image_region(size_t size)
{
    (void)size;
    return port_region(PORT_IMAGE);
}

size_t port_read(uint8_t *to, size_t max)
{
    ssize_t got;
    do
        got = read(board.in, to, max);
    while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

void port_write(const uint8_t *from, size_t size)
{
    while (size) {
        ssize_t sent = write(board.out, from, size);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            exit(EXIT_SUCCESS); /* the host has gone: so does the board */
        from += sent;
        size -= (size_t)sent;
    }
}

bool port_link_is_reliable(void)
{
    return true; /* streams and TCP are */
}

uint64_t port_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * BOARD_TICKS_PER_SECOND + (uint64_t)now.tv_nsec;
}

uint32_t port_ticks_per_second(void)
{
    return BOARD_TICKS_PER_SECOND;
}

void port_alive(void)
{
}

struct port_stack port_stack(void)
{
    return (struct port_stack){0, 0};
}

/* A pool of threads that all run the same function once a generation. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    unsigned generation, running;
    void (*fn)(void *, unsigned);
    void *context;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .start = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void *work(void *argument)
{
    unsigned worker = (unsigned)(uintptr_t)argument, seen = 0;
    for (;;) {
        pthread_mutex_lock(&pool.mutex);
        while (pool.generation == seen)
            pthread_cond_wait(&pool.start, &pool.mutex);
        seen = pool.generation;
        pthread_mutex_unlock(&pool.mutex);
        pool.fn(pool.context, worker);
        pthread_mutex_lock(&pool.mutex);
        if (--pool.running == 0)
            pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.mutex);
    }
    return NULL;
}

unsigned port_workers(void)
{
    return board.workers;
}

void port_parallel(void (*fn)(void *context, unsigned worker), void *context)
{
    pthread_mutex_lock(&pool.mutex);
    pool.fn = fn;
    pool.context = context;
    pool.running = board.workers - 1;
    pool.generation++;
    pthread_cond_broadcast(&pool.start);
    pthread_mutex_unlock(&pool.mutex);
    fn(context, 0);
    pthread_mutex_lock(&pool.mutex);
    while (pool.running)
        pthread_cond_wait(&pool.done, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

static void fail(const char *what)
{
    fprintf(stderr, "zo_board: %s\n", what);
    exit(EXIT_FAILURE);
}

static long number(const char *option, const char *text, long least, long most)
{
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || value < least || value > most) {
        fprintf(stderr, "zo_board: %s needs a number from %ld to %ld\n", option, least, most);
        exit(EXIT_FAILURE);
    }
    return value;
}

/* Wait for one connection, which becomes the link. Port 0: any; the one chosen is printed. */
static void listen_on(char *address)
{
    char *colon = address ? strrchr(address, ':') : NULL;
    if (!colon)
        fail("--listen needs HOST:PORT");
    *colon = 0;
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *info;
    if (getaddrinfo(address, colon + 1, &hints, &info) != 0)
        fail("--listen: no such host or port");
    int server = socket(info->ai_family, info->ai_socktype, 0), on = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (server < 0 || bind(server, info->ai_addr, info->ai_addrlen) != 0 || listen(server, 1) != 0)
        fail("--listen: the address cannot be used (is the port taken?)");
    freeaddrinfo(info);
    struct sockaddr_in bound;
    socklen_t size = sizeof bound;
    getsockname(server, (struct sockaddr *)&bound, &size);
    printf("listening on port %u\n", ntohs(bound.sin_port));
    fflush(stdout);
    board.in = board.out = accept(server, NULL, NULL);
    if (board.in < 0)
        fail("--listen: no connection");
    setsockopt(board.in, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(server);
}

/* Memory that is there when it is touched: a large store costs nothing until it is filled. */
static uint8_t *map(void *address, size_t size, int flags)
{
    void *base =
        mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* A build with a compiled network has its weights at the address that it was compiled for, as a microcontroller does.
 */
static void map_weights(void)
{
#ifdef BOARD_WEIGHTS_ADDRESS
    uint8_t *address = (uint8_t *)(uintptr_t)BOARD_WEIGHTS_ADDRESS;
    board.weights = (struct port_region){.base = address, .size = BOARD_WEIGHTS_BYTES};
    if (map(address, BOARD_WEIGHTS_BYTES, MAP_FIXED_NOREPLACE) != address)
        fail("no memory at the address of the compiled network's weights");
#endif
}

int main(int argc, char **argv)
{
    long memory_mib = DEFAULT_MEMORY_MIB;
    char *listen_address = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--memory") == 0)
            memory_mib = number(argv[i], argv[i + 1], 1, MAX_MEMORY_MIB);
        else if (strcmp(argv[i], "--threads") == 0)
            board.workers = (unsigned)number(argv[i], argv[i + 1], 1, BOARD_MAX_WORKERS);
        else if (strcmp(argv[i], "--listen") == 0)
            listen_address = argv[i + 1];
        else
            fail("usage: zo_board [--memory MIB] [--threads N] [--listen HOST:PORT]");
    }
    signal(SIGPIPE, SIG_IGN);
    board.memory.size = (size_t)memory_mib << 20;
    board.memory.base = map(NULL, board.memory.size, 0);
    if (!board.memory.base)
        fail("no memory for the sample store: use a smaller --memory");
    map_weights();
    for (unsigned w = 1; w < board.workers; w++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)w) != 0)
            fail("no more threads: use a smaller --threads");
    }
    if (listen_address)
        listen_on(listen_address);
    app_run(&app);
    return EXIT_SUCCESS;
}
