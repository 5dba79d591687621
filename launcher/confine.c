/* Confines the launcher to the system calls of calls.h.
 *
 * It is root of the host and stays that: what it can open, write and mount is not limited. But it can no longer start a
 * program or a process, connect to anything, trace, or reach the kernel's less trodden parts (bpf, keys, modules).
 * A call that is missing does not exist (ENOSYS), which a C library may get along with; the launcher itself then fails
 * with a line that says where.
 */
#include "calls.h"
#include "launch.h"

#define LOAD_WORD 0x20     /* BPF_LD | BPF_W | BPF_ABS */
#define JUMP_IF_EQUAL 0x15 /* BPF_JMP | BPF_JEQ | BPF_K */
#define RETURN 0x06        /* BPF_RET | BPF_K */
#define NUMBER_AT 0        /* in struct seccomp_data */
#define MACHINE_AT 4
#define ALLOW 0x7fff0000
#define ERRNO 0x00050000
#ifdef __x86_64__
#define MACHINE 0xc000003e
#else
#define MACHINE 0xc00000b7 /* aarch64 */
#endif

struct step {
    uint16_t code;
    uint8_t if_true, if_false;
    uint32_t value;
};
_Static_assert(sizeof(struct step) == 8, "struct sock_filter");

#define CALL(name) SYS_##name
static const int allowed[] = {CONFINED_CALLS, RARE_CALLS, OLD_CALLS};
#define COUNT (sizeof allowed / sizeof *allowed)
_Static_assert(COUNT < 250, "a jump is at most 255 steps long");

void confine(void) {
#ifndef __SANITIZE_ADDRESS__ /* the sanitizers make calls of their own */
    struct step steps[COUNT + 5] = {
        {LOAD_WORD, 0, 0, MACHINE_AT}, {JUMP_IF_EQUAL, 0, COUNT + 1, MACHINE}, {LOAD_WORD, 0, 0, NUMBER_AT}};
    struct {
        unsigned short length;
        const void *code;
    } program = {COUNT + 5, steps};
    _Static_assert(sizeof program == 16, "struct sock_fprog");
    size_t i;

    for (i = 0; i < COUNT; i++) steps[3 + i] = (struct step){JUMP_IF_EQUAL, COUNT - i, 0, allowed[i]};
    steps[3 + COUNT] = (struct step){RETURN, 0, 0, ERRNO | ENOSYS};
    steps[4 + COUNT] = (struct step){RETURN, 0, 0, ALLOW};
    if (prctl(PR_SET_SECCOMP, 2, &program)) fail("confining the launcher");
#endif
}
