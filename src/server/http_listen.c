/* server/http_listen.c - the listening socket: a name or address, and a port, bound. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "server/http_private.h"

/* Binds and listens on one address. Returns 0, or errno. */
static int listen_on(const struct addrinfo *a, int *out)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return errno;
    int one = 1, zero = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) /* "::" serves both kinds of address */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

/* Where it listens. */
static void look(int fd, uint16_t *port, bool *loopback)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name;
    socklen_t n = sizeof name;
    if (getsockname(fd, &name.any, &n) != 0) return;
    bool six = name.any.sa_family == AF_INET6;
    *port = ntohs(six ? name.v6.sin6_port : name.v4.sin_port);
    *loopback = six ? IN6_IS_ADDR_LOOPBACK(&name.v6.sin6_addr)
                    : ntohl(name.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

sheaf_status sheaf__http_listen(const sheaf__http_options *options, int *fd, uint16_t *port,
                                bool *loopback, sheaf_error *err)
{
    const char *host = options->host;
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *list = NULL;
    snprintf(service, sizeof service, "%u", options->any_port ? 0u : options->port);
    int failed = getaddrinfo(host, service, &hints, &list);
    if (failed == EAI_MEMORY)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory to resolve %s", host);
    if (failed != 0)
        return sheaf__error_set(err, SHEAF_E_USAGE, "host %s has no address: %s", host,
                                gai_strerror(failed));
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a != NULL && error != 0; a = a->ai_next)
        error = listen_on(a, fd);
    freeaddrinfo(list);
    if (error != 0)
        return sheaf__error_set(err, SHEAF_E_IO, "cannot listen on %s port %s: %s", host,
                                service, strerror(error));
    look(*fd, port, loopback);
    return SHEAF_OK;
}
