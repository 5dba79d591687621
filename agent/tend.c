/* Keeps the agent's own processes going where commands may be root.
 *
 * Root inside can send every signal to every process but the first, which is the agent. It can stop supervisors and
 * file jobs, and then their callers would wait for ever. It can kill a supervisor, and then the command's processes
 * would run on. So the agent continues its own processes every half second, kills a supervisor that does not carry out
 * an order in time, and kills the processes that have lost their supervisor. It knows these because the kernel makes
 * them its children, and it has no other children than supervisors and file jobs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "command.h"
#include "files.h"

#define TEND_US (500 * 1000)
#define LOOK_US (5 * 1000)
#define OVERDUE_US (5 * 1000 * 1000)
#define STRAYS_US (10 * 1000 * 1000)

static uint64_t last_us, strays_until_us;

void tend_ordered(struct command *c, uint32_t grace_ms) {
    if (!settings.allow_root || c->overdue_us) return;
    c->ordered_us = now_us();
    c->overdue_us = c->ordered_us + (uint64_t)grace_ms * 1000 + OVERDUE_US;
}

void tend_resumed(struct command *c, uint64_t paused_us) {
    uint64_t since = now_us() - c->ordered_us;
    if (c->overdue_us) c->overdue_us += paused_us < since ? paused_us : since;
}

void tend_lost_supervisor(void) {
    if (settings.allow_root) strays_until_us = now_us() + STRAYS_US;
}

static bool is_supervisor(pid_t pid) {
    for (struct command *c = commands; c; c = c->next)
        if (c->control.fd >= 0 && c->supervisor == pid) return true;
    return false;
}

static size_t kill_strays(void) {
    size_t found = 0;
    struct process m;
    DIR *proc = getpid() == 1 ? opendir("/proc") : NULL;
    for (struct dirent *d; proc && (d = readdir(proc));) {
        if (d->d_name[0] < '1' || d->d_name[0] > '9' || !read_stat(d->d_name, &m) || m.parent != 1 || m.state == 'Z')
            continue;
        if (is_supervisor(m.pid) || job_has(m.pid)) continue;
        found++;
        kill(m.pid, SIGKILL);
    }
    if (proc) closedir(proc);
    return found;
}

static bool has_helpers(void) {
    for (struct command *c = commands; c; c = c->next)
        if (c->control.fd >= 0) return true;
    return job_any();
}

uint64_t tend_next(void) {
    if (!settings.allow_root) return UINT64_MAX;
    if (strays_until_us) return now_us() + LOOK_US;
    return has_helpers() ? last_us + TEND_US : UINT64_MAX;
}

void tend(void) {
    uint64_t now = settings.allow_root ? now_us() : 0;
    if (strays_until_us && (kill_strays() == 0 || now > strays_until_us)) strays_until_us = 0;
    if (now < last_us + TEND_US) return;
    last_us = now;
    for (struct command *c = commands; c; c = c->next) {
        if (c->control.fd < 0) continue;
        kill(c->supervisor, SIGCONT);
        if (!c->overdue_us || c->overdue_us > now) continue;
        c->overdue_us = 0;
        kill_children(c->supervisor);
        kill(c->supervisor, SIGKILL);
    }
    job_continue_all();
}
