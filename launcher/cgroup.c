/* The cgroups of a sandbox that is made without a runtime: making them, their limits, and moving the first process
 * there.
 *
 * cgroup v1 has a controller for devices. In v2 a program takes its place, which the kernel asks each time a device is
 * opened: it is put together here, an instruction at a time, so that no compiler and no library is needed.
 */
#include "launch.h"

/* From the kernel's linux/bpf.h, which the include directory of a libc may lack. */
#define BPF_PROG_LOAD_ 5
#define BPF_PROG_ATTACH_ 8
#define CGROUP_DEVICE_PROGRAM 15
#define AT_CGROUP_DEVICE 6
#define ALLOW_MULTI 2
#define BLOCK_DEVICE 1
#define CHARACTER_DEVICE 2
#define MAX_INSTRUCTIONS (8 * MANY + 16)

struct instruction {
    uint8_t code, registers;
    int16_t offset;
    int32_t value;
};
_Static_assert(sizeof(struct instruction) == 8, "struct bpf_insn");

/* Tries to move this process to a cgroup. It may fail: what counts is that the kernel has begun to prepare for moves.
 */
static void move_self(const char *procs) {
    int fd = procs ? open(procs, O_WRONLY | O_CLOEXEC) : -1;

    if (fd >= 0 && write(fd, "0", 1) == 1) close(fd);
}

/* Lets a child try such a move and end; start_attacher says why. Returns its pid, to be waited for. */
pid_t try_move(const char *procs) {
    pid_t pid = procs ? fork() : -1;

    if (pid) return pid;
    move_self(procs);
    _exit(0);
}

static int write_file(const char *name, const char *text) {
    int fd = open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW), error;
    ssize_t size = strlen(text);

    if (fd < 0) return -1;
    if (write(fd, text, size) != size) {
        error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return close(fd);
}

static void write_item(const char *item, int must) {
    char name[PATH_ROOM], *value;

    path(name, "%s", item);
    value = strchr(name, '=');
    *value++ = 0;
    if (write_file(name, value) && must) fail("writing '%s' to %s", value, name);
}

static void make_above(const char *directory) {
    char above[PATH_ROOM], *slash;

    path(above, "%s", directory);
    slash = strrchr(above, '/');
    if (slash == above) return;
    *slash = 0;
    if (mkdir(above, 0755) && errno != EEXIST) fail("making the cgroup %s", above);
}

static void make_cgroup(const char *directory) {
    if (mkdir(directory, 0755) == 0) return;
    if (errno == ENOENT) make_above(directory);
    if (mkdir(directory, 0755)) fail("making the cgroup %s", directory);
}

/* Whether an item FILE=+NAME is in force. Writing it again would stop every other change of cgroups on the machine
 * until those that were removed are gone. */
static int is_enabled(const char *item) {
    char name[PATH_ROOM], words[512], *value, *word, *rest;
    ssize_t size;
    int fd;

    path(name, "%s", item);
    value = strchr(name, '=');
    *value++ = 0;
    fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return 0;
    size = read(fd, words, sizeof words - 1);
    close(fd);
    words[size > 0 ? size : 0] = 0;
    for (word = strtok_r(words, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
        if (*value == '+' && !strcmp(word, value + 1)) return 1;
    return 0;
}

void make_cgroups(const struct options *o) {
    int i;

    if (o->enabled.count && o->into) make_above(o->into);
    for (i = 0; i < o->enabled.count; i++)
        if (!is_enabled(o->enabled.items[i])) write_item(o->enabled.items[i], 0);
    if (o->into) make_cgroup(o->into);
    for (i = 0; i < o->cgroups.count; i++) make_cgroup(o->cgroups.items[i]);
    for (i = 0; i < o->settings.count; i++) write_item(o->settings.items[i], 1);
    for (i = 0; i < o->tried.count; i++) write_item(o->tried.items[i], 0);
}

/* ---- devices of cgroup v2: a program that the kernel asks each time one is opened ---- */

/* Writes the instructions for one --allow-device: if all of its conditions hold, the access is allowed. */
static int rule(struct instruction *at, const char *item) {
    unsigned major_, minor_;
    char kind, minor_text[16], access[4], end;
    int allowed = 0, count = 0, i;
    size_t each;

    if (sscanf(item, "%c:%u:%15[0-9*]:%3[rwm]%c", &kind, &major_, minor_text, access, &end) != 4 ||
        (kind != 'c' && kind != 'b'))
        usage("--allow-device needs KIND:MAJOR:MINOR:ACCESS, not '%s'", item);
    for (each = 0; access[each]; each++) allowed |= access[each] == 'm' ? 1 : access[each] == 'r' ? 2 : 4;
    at[count++] = (struct instruction){0x55, 5, 0, kind == 'c' ? CHARACTER_DEVICE : BLOCK_DEVICE}; /* if r5 != kind */
    at[count++] = (struct instruction){0xbf, 6 | 2 << 4, 0, 0}; /* r6 = r2 */
    at[count++] = (struct instruction){0x57, 6, 0, 7 & ~allowed}; /* r6 &= … */
    at[count++] = (struct instruction){0x55, 6, 0, 0}; /* if r6 != 0 */
    at[count++] = (struct instruction){0x55, 3, 0, (int32_t)major_}; /* if r3 != major */
    if (strcmp(minor_text, "*")) {
        minor_ = (unsigned)number("--allow-device", minor_text);
        at[count++] = (struct instruction){0x55, 4, 0, (int32_t)minor_}; /* if r4 != minor */
    }
    at[count++] = (struct instruction){0xb7, 0, 0, 1}; /* r0 = 1 */
    at[count++] = (struct instruction){0x95, 0, 0, 0}; /* return r0 */
    for (i = 0; i < count; i++)
        if (at[i].code == 0x55) at[i].offset = (int16_t)(count - i - 1); /* to the next rule */
    return count;
}

/* Writes the program for all rules; returns the number of its instructions. */
static int compile_rules(const struct options *o, struct instruction *program) {
    static const struct instruction start[] = {
        {0x61, 2 | 1 << 4, 0, 0}, /* r2 = access and kind */
        {0x61, 3 | 1 << 4, 4, 0}, /* r3 = major */
        {0x61, 4 | 1 << 4, 8, 0}, /* r4 = minor */
        {0xbf, 5 | 2 << 4, 0, 0}, /* r5 = r2 */
        {0x57, 5, 0, 0xffff}, /* r5 &= 0xffff, the kind */
        {0x77, 2, 0, 16}, /* r2 >>= 16, the access */
    };
    int i, count = sizeof start / sizeof *start;

    memcpy(program, start, sizeof start);
    for (i = 0; i < o->allowed.count; i++) count += rule(program + count, o->allowed.items[i]);
    program[count++] = (struct instruction){0xb7, 0, 0, 0};
    program[count++] = (struct instruction){0x95, 0, 0, 0};
    return count;
}

static struct instruction rules[MAX_INSTRUCTIONS];

void check_devices(const struct options *o) {
    if (o->allowed.count && !o->into) usage("--allow-device needs --into");
    compile_rules(o, rules);
}

static int load_rules(const struct options *o) {
    static const char license[] = "GPL";
    struct {
        uint32_t type, count;
        uint64_t instructions, license;
        uint32_t log_level, log_size;
        uint64_t log;
        uint32_t kernel_version, flags;
    } attributes = {.type = CGROUP_DEVICE_PROGRAM};
    _Static_assert(sizeof attributes == 48, "union bpf_attr of BPF_PROG_LOAD up to prog_flags");

    attributes.count = compile_rules(o, rules);
    attributes.instructions = (uintptr_t)rules;
    attributes.license = (uintptr_t)license;
    return syscall(SYS_bpf, BPF_PROG_LOAD_, &attributes, sizeof attributes);
}

/* Attaches the program to the cgroup: every device but those of --allow-device is refused. */
void limit_devices(const struct options *o) {
    struct { uint32_t target, program, where, flags; } attributes = {.where = AT_CGROUP_DEVICE, .flags = ALLOW_MULTI};
    _Static_assert(sizeof attributes == 16, "union bpf_attr of BPF_PROG_ATTACH");
    int directory, program;

    if (!o->allowed.count) return;
    directory = open(o->into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) fail("opening the cgroup %s", o->into);
    program = load_rules(o);
    if (program < 0) fail("loading the rules for devices");
    attributes.target = directory;
    attributes.program = program;
    if (syscall(SYS_bpf, BPF_PROG_ATTACH_, &attributes, sizeof attributes))
        fail("attaching the rules for devices to %s", o->into);
    close(program);
    close(directory);
}

/* ---- moving the first process ---- */

__attribute__((noreturn)) static void attach_to_all(const struct options *o, int pids, int done) {
    char name[PATH_ROOM], text[32], byte = 0;
    pid_t pid;
    int i;

    move_self(o->move);
    if (read(pids, &pid, sizeof pid) != sizeof pid) _exit(FAILED); /* the owner has ended, and has written why */
    snprintf(text, sizeof text, "%d", pid);
    for (i = 0; i < o->cgroups.count; i++)
        if (write_file(path(name, "%s/cgroup.procs", o->cgroups.items[i]), text))
            fail("moving the sandbox to the cgroup %s", o->cgroups.items[i]);
    _exit(write(done, &byte, 1) == 1 ? 0 : FAILED);
}

/*
 * Starts a process that moves the sandbox's first one to its cgroups as soon as its number comes from the pipe `pids`,
 * and then writes a byte to `done`. If no process has been moved for a while, the kernel lets the first one wait for
 * some 10 ms: so it begins with moving itself, and all else is done meanwhile.
 * Returns its pid.
 */
pid_t start_attacher(const struct options *o, const int pids[2], int done) {
    pid_t parent = getpid(), pid = fork();

    if (pid < 0) fail("forking");
    if (pid) return pid;
    close(pids[1]);
    die_with(parent);
    attach_to_all(o, pids[0], done);
}
