/* The program `sudo` of a sandbox whose commands may be root: the agent's program by another name.
 *
 * It needs no rights of its own. It hands stdin, stdout, stderr and the working directory to the supervisor of the
 * command that it belongs to (elevate.c), with the command line and the environment in an anonymous file, then passes
 * signals on and waits. The command writes straight to what it was handed.
 *
 * If stdin and stdout are the terminal, the command gets one of its own, made here, so that shells have job control: a
 * process cannot join the session of another. What comes from one terminal is then copied to the other. Else the
 * command has no controlling terminal; Ctrl-C and Ctrl-Z reach it as signals that are passed on.
 *
 * The environment is kept: whoever may call sudo here may do all that root may, so there is nothing to protect, and
 * what a sandbox needs to reach package mirrors is in variables.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"
#include "supervise.h"
#include "wire.h"

#define COPY_BYTES 4096
#define DRAIN_MS 50

extern char **environ;

static const char usage_text[] =
    "usage: sudo [-EHinS] [-u USER] [-D DIR] [VAR=value …] [COMMAND [ARGUMENT …]]\n"
    "       sudo -i | -s [COMMAND …]      a shell, as at a login or not\n"
    "       sudo -l | -v | -k | -K        what is allowed; the others do nothing\n"
    "Runs a command as root of this sandbox, or as USER. No password is asked for, and the environment is kept.\n";

struct options {
    const char *user, *cwd;
    bool login, shell, keep_home, set_home, list, nothing;
    int first; /* the index of the first assignment, or of the command */
};

static struct termios before;
static bool is_raw;

static void stop(const char *what, const char *why) {
    dprintf(2, "sudo: %s%s%s\n", what, why ? ": " : "", why ? why : "");
    exit(1);
}

/* ---- options ---- */

static void wrong_usage(const char *option) {
    dprintf(2, "sudo: the option %s is not known here, or lacks its value\n%s", option, usage_text);
    exit(1);
}

static bool short_option(struct options *o, char name) {
    switch (name) {
    case 'E': o->keep_home = true; return true;
    case 'H': o->set_home = true; return true;
    case 'i': o->login = true; return true;
    case 's': o->shell = true; return true;
    case 'l': o->list = true; return true;
    case 'v':
    case 'k':
    case 'K': o->nothing = true; return true;
    case 'n':
    case 'S':
    case 'A':
    case 'B':
    case 'P': return true;
    case 'h':
    case 'V': printf("sudo of a Warren sandbox\n%s", usage_text); exit(0);
    default: return false;
    }
}

static bool long_option(struct options *o, const char *name) {
    static const struct {
        const char *name;
        char letter;
    } all[] = {
        {"preserve-env", 'E'},
        {"set-home", 'H'},
        {"login", 'i'},
        {"shell", 's'},
        {"list", 'l'},
        {"validate", 'v'},
        {"reset-timestamp", 'k'},
        {"remove-timestamp", 'K'},
        {"non-interactive", 'n'},
        {"stdin", 'S'},
        {"askpass", 'A'},
        {"bell", 'B'},
        {"preserve-groups", 'P'},
        {"help", 'h'},
        {"version", 'V'},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(name, all[i].name) == 0) return short_option(o, all[i].letter);
    return strncmp(name, "preserve-env=", 13) == 0 || strncmp(name, "prompt=", 7) == 0;
}

/* Returns where the value of an option goes, if it takes one: -u, -D, and -p, which is ignored. NULL for all others. */
static const char **valued_option(struct options *o, const char *option) {
    static const char *ignored;
    if (strcmp(option, "u") == 0 || strcmp(option, "-user") == 0) return &o->user;
    if (strcmp(option, "D") == 0 || strcmp(option, "-chdir") == 0) return &o->cwd;
    return strcmp(option, "p") == 0 || strcmp(option, "-prompt") == 0 ? &ignored : NULL;
}

static void parse_word(struct options *o, int argc, char **argv, int *at) {
    const char *word = argv[*at] + 1, *equals = strchr(word, '=');
    char name[16] = "";
    if (*word == '-') {
        if (equals && (size_t)(equals - word) < sizeof name) memcpy(name, word, (size_t)(equals - word));
        const char **value = valued_option(o, *name ? name : word);
        if (value && *name) *value = equals + 1;
        else if (value && *at + 1 < argc) *value = argv[++*at];
        else if (!long_option(o, word + 1)) wrong_usage(argv[*at]);
        return;
    }
    for (; *word; word++) {
        const char **value = valued_option(o, (char[]){*word, 0});
        if (!value && short_option(o, *word)) continue;
        if (!value || (!word[1] && *at + 1 >= argc)) wrong_usage(argv[*at]);
        *value = word[1] ? word + 1 : argv[++*at];
        return;
    }
}

static struct options parse(int argc, char **argv) {
    struct options o = {0};
    int i = 1;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        parse_word(&o, argc, argv, &i);
    }
    o.first = i;
    if (o.user && *o.user == '#') o.user++;
    return o;
}

static bool is_assignment(const char *word) {
    size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
    return n > 0 && word[n] == '=' && !(*word >= '0' && *word <= '9');
}

/* ---- the request ---- */

/* Joins the words for a shell's -c, so that the shell sees each as one word again. */
static char *quoted(int argc, char **argv) {
    struct buf b = {0};
    for (int i = 0; i < argc; i++) {
        if (i) buf_add(&b, " ", 1);
        for (const char *s = argv[i]; *s; s++) {
            bool plain = strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789-$./", *s);
            if (!plain) buf_add(&b, "\\", 1);
            buf_add(&b, s, 1);
        }
    }
    buf_add(&b, "", 1);
    return (char *)b.p;
}

static void add_command(struct buf *b, const struct options *o, int argc, char **argv) {
    if (o->login || o->shell) {
        add_text(b, TAG_ARGV, access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh");
        if (o->login) add_text(b, TAG_ARGV, "-l");
        if (argc > 0) {
            add_text(b, TAG_ARGV, "-c");
            add_text(b, TAG_ARGV, quoted(argc, argv));
        }
        return;
    }
    for (int i = 0; i < argc; i++) add_text(b, TAG_ARGV, argv[i]);
}

static int write_request(const struct options *o, int argc, char **argv, bool terminal) {
    struct buf b = {0}, line = {0};
    int i = o->first;
    bool home = o->keep_home && !o->set_home && !o->login;
    for (; i < argc && is_assignment(argv[i]); i++) add_text(&b, TAG_BASE_ENV, argv[i]);
    if (i == argc && !o->login && !o->shell) {
        dprintf(2, "%s", usage_text);
        exit(1);
    }
    add_command(&b, o, argc - i, argv + i);
    for (char **e = environ; *e; e++) add_text(&b, TAG_ENV, *e);
    buf_add(&line, "SUDO_COMMAND=", 13);
    for (int k = i; k < argc; k++) {
        if (k > i) buf_add(&line, " ", 1);
        buf_add(&line, argv[k], strlen(argv[k]));
    }
    if (i < argc && buf_used(&line) < 4096) add_bytes(&b, TAG_BASE_ENV, buf_head(&line), buf_used(&line));
    if (o->user) add_text(&b, TAG_USER, o->user);
    if (o->cwd) add_text(&b, TAG_CWD, o->cwd);
    add_number(&b, TAG_FLAGS,
               (terminal ? SUDO_TERMINAL : 0u) | (o->login ? SUDO_LOGIN : 0u) | (home ? SUDO_KEEP_HOME : 0u));
    int fd = memfd_create("sudo", MFD_CLOEXEC);
    if (fd < 0 || !write_all(fd, buf_head(&b), buf_used(&b))) stop("the request cannot be written", strerror(errno));
    return fd;
}

/* ---- the supervisor ---- */

/* Finds the supervisor of this command: the ancestor whose parent is the first process. */
static pid_t supervisor(void) {
    char name[16];
    struct process m;
    for (pid_t pid = getpid();; pid = m.parent) {
        snprintf(name, sizeof name, "%d", pid);
        if (!read_stat(name, &m) || m.parent < 1) return -1;
        if (m.parent == 1) return pid;
    }
}

static int call_supervisor(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, SUDO_SOCKET, supervisor());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) stop("no socket", strerror(errno));
    if (connect(fd, (struct sockaddr *)&a, (socklen_t)(sizeof a.sun_family + 1 + (size_t)n)) != 0)
        stop("this process belongs to no command of the sandbox, or root is not allowed in it", strerror(errno));
    return fd;
}

static void hand_over(int conn, const int fds[SUDO_FDS]) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(SUDO_FDS * sizeof(int))];
    } space = {0};
    uint32_t version = SUDO_VERSION;
    struct iovec part = {&version, sizeof version};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(SUDO_FDS * sizeof(int));
    memcpy(CMSG_DATA(c), fds, SUDO_FDS * sizeof(int));
    if (sendmsg(conn, &m, MSG_NOSIGNAL) != sizeof version)
        stop("the request was not taken: too many are running", NULL);
}

/* ---- terminals ---- */

static bool in_foreground(void) { return isatty(0) && tcgetpgrp(0) == getpgrp(); }

/* Makes a terminal with the settings and the size of ours. Returns the end for the command. */
static int make_terminal(int *master) {
    struct winsize size;
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    const char *name = *master >= 0 && grantpt(*master) == 0 && unlockpt(*master) == 0 ? ptsname(*master) : NULL;
    int end = name ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
    if (end < 0 || tcgetattr(0, &before) != 0) stop("no terminal can be made", strerror(errno));
    tcsetattr(end, TCSANOW, &before);
    if (ioctl(0, TIOCGWINSZ, &size) == 0) ioctl(end, TIOCSWINSZ, &size);
    return end;
}

static void make_raw(void) {
    struct termios raw = before;
    cfmakeraw(&raw);
    is_raw = tcsetattr(0, TCSADRAIN, &raw) == 0;
}

static void restore(void) {
    if (is_raw) tcsetattr(0, TCSADRAIN, &before);
    is_raw = false;
}

/* Copies what the command has written to its terminal to ours; false at the end. */
static bool show(int master) {
    static char text[COPY_BYTES];
    ssize_t n = read(master, text, sizeof text);
    if (n > 0) return write_all(1, text, (size_t)n);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void drain(int master) {
    struct pollfd p = {master, POLLIN, 0};
    while (poll(&p, 1, DRAIN_MS) > 0 && p.revents & POLLIN && show(master)) {}
}

/* ---- waiting ---- */

static void finish(int status) {
    restore();
    if (WIFEXITED(status)) exit(WEXITSTATUS(status));
    int number = WTERMSIG(status);
    struct rlimit no_core = {0, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    setrlimit(RLIMIT_CORE, &no_core);
    signal(number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    exit(128 + number);
}

static void pass_on(int conn, int number) {
    struct sudo_event event = {SUDO_SIGNAL, number};
    send(conn, &event, sizeof event, MSG_NOSIGNAL);
}

static void take_signal(int signals, int conn, int master) {
    struct signalfd_siginfo info;
    struct winsize size;
    if (read(signals, &info, sizeof info) != sizeof info) return;
    switch (info.ssi_signo) {
    case SIGWINCH:
        if (master >= 0 && ioctl(0, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
        else pass_on(conn, SIGWINCH);
        return;
    case SIGTSTP: /* the kernel does not let SIGTSTP stop the command's process group, which is orphaned */
        pass_on(conn, SIGSTOP);
        restore();
        kill(getpid(), SIGSTOP);
        return;
    case SIGCONT:
        if (master >= 0 && in_foreground()) make_raw();
        pass_on(conn, SIGCONT);
        return;
    default: pass_on(conn, (int)info.ssi_signo);
    }
}

static int listen_to_signals(void) {
    static const int all[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGTSTP, SIGCONT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sigaddset(&set, all[i]);
    sigprocmask(SIG_SETMASK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* Passes signals and the terminal's data on until the command has ended, and exits as it did. `master` is -1 without a
 * terminal. */
static void wait_for_end(int conn, int signals, int master) {
    static uint8_t typed[COPY_BYTES];
    size_t waiting = 0;
    struct sudo_event event;
    struct pollfd p[4] = {
        {conn, POLLIN, 0}, {signals, POLLIN, 0}, {master, POLLIN, 0}, {master < 0 ? -1 : 0, POLLIN, 0}};
    for (;;) {
        p[2].events = (short)(POLLIN | (waiting ? POLLOUT : 0));
        p[3].events = waiting ? 0 : POLLIN;
        if (poll(p, 4, -1) < 0) continue;
        if (p[1].revents) take_signal(signals, conn, master);
        if (p[2].revents & (POLLIN | POLLHUP) && !show(master)) p[2].fd = -1;
        if (p[3].revents) {
            ssize_t n = read(0, typed, sizeof typed);
            waiting = n > 0 ? (size_t)n : 0;
            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) p[3].fd = -1;
        }
        if (waiting) {
            ssize_t n = write(master, typed, waiting);
            if (n > 0) memmove(typed, typed + n, waiting -= (size_t)n);
            else if (errno != EAGAIN && errno != EINTR) waiting = 0;
        }
        if (!p[0].revents) continue;
        ssize_t n = recv(conn, &event, sizeof event, 0);
        if (master >= 0) drain(master);
        if (n == sizeof event && event.kind == SUDO_EXITED) finish(event.value);
        restore();
        stop("the request was not taken: too many are running, or it was ended from outside", NULL);
    }
}

int sudo_main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    if (o.list) {
        printf(
            "Everybody in this sandbox may run all commands as any of its users, root included, without a password.\n");
        return 0;
    }
    if (o.nothing && o.first == argc) return 0;
    bool terminal = isatty(1) && in_foreground();
    int master = -1, end = terminal ? make_terminal(&master) : -1;
    int input = terminal ? end : isatty(0) && !in_foreground() ? open("/dev/null", O_RDONLY | O_CLOEXEC) : 0;
    int fds[SUDO_FDS] = {
        [SUDO_IN] = input,
        [SUDO_OUT] = terminal ? end : 1,
        [SUDO_ERR] = terminal && isatty(2) ? end : 2,
        [SUDO_CWD] = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC),
        [SUDO_REQUEST] = write_request(&o, argc, argv, terminal),
    };
    if (fds[SUDO_CWD] < 0) fds[SUDO_CWD] = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int signals = listen_to_signals(), conn = call_supervisor();
    hand_over(conn, fds);
    close(fds[SUDO_REQUEST]);
    if (terminal) {
        close(end);
        make_raw();
    }
    wait_for_end(conn, signals, master);
    return 1;
}
