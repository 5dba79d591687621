/* Ends everything in the sandbox but the agent, which takes two steps because the agent must not wait.
 *
 * `command_kill_all` sends KILL to all processes and keeps the worker's channel open. From then on the main loop calls
 * `command_check_ended_all` every few milliseconds, which answers when no process is left or when the time is up. Until
 * then no command and no file operation is started.
 *
 * The agent of a sandbox of Warren's own is the first process of a pid namespace, and kill(-1) reaches every other
 * process in it at once. A process with a pending KILL cannot fork, so a fork bomb cannot outrun it, and no process is
 * needed to do it. All processes are below the agent: when waitpid knows of no child, they are gone. A guest has other
 * processes beside it and kills as each user of a command instead.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"

#define GIVE_UP_US (10 * 1000 * 1000)

static uint64_t all_deadline_us; /* when to give up waiting; 0 if nothing is being ended */
static uint32_t all_killed;

bool command_ending_all(void) { return all_deadline_us != 0; }

/* Counts the entries of /proc without reading them: there may be as many processes as the limit allows. */
static uint32_t count_other_processes(void) {
    uint32_t n = 0;
    if (settings.guest) return (uint32_t)scan_tree(); /* processes that are none of its business run beside it */
    DIR *proc = opendir("/proc");
    for (struct dirent *d; proc && (d = readdir(proc));) n += d->d_name[0] >= '1' && d->d_name[0] <= '9';
    if (proc) closedir(proc);
    return n ? n - 1 : 0;
}

/* Counts the agent's own processes, supervisors and file jobs, which the worker is not told of. */
static uint32_t count_helpers(void) {
    uint32_t n = spare_kept();
    for (struct command *c = commands; c; c = c->next) n += c->control.fd >= 0;
    for (struct channel *ch = channel_first(); ch; ch = ch->next) n += ch->job != NULL;
    return n;
}

/* Kills all processes of a user: as that user kill(-1) reaches all of them at once, wherever they are, and no others.
 */
static void kill_all_of(const char *name) {
    struct user u;
    if (!find_user(name, &u)) return;
    pid_t pid = fork();
    if (pid == 0) {
        if (become_user(&u)) kill(-1, SIGKILL);
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* Kills what commands have started, and then the agent's children: its helpers, and the orphans that they leave to
 * it. */
static void kill_as_guest(void) {
    kill_all_of(settings.user);
    for (struct command *c = commands; c; c = c->next)
        if (c->life != LIFE_ENDED && strcmp(c->user, settings.user) != 0) kill_all_of(c->user);
    kill_children(getpid());
}

void command_kill_all(uint32_t channel) {
    if (getpid() != 1 && !settings.guest) { /* outside of a pid namespace this would reach the whole machine */
        send_error(channel, CODE_INVALID, "the agent is not the first process");
        return;
    }
    struct channel *ch = channel_open(channel);
    if (!ch) return;
    ch->kill_all = true;
    if (command_ending_all()) return;
    uint32_t found = count_other_processes(), helpers = count_helpers();
    for (struct command *c = commands; c; c = c->next) {
        if (c->life != LIFE_ENDED && c->ending == REASON_EXITED) c->ending = REASON_CANCELLED;
        c->deadline_us = 0;
    }
    all_killed = found > helpers ? found - helpers : 0;
    all_deadline_us = now_us() + GIVE_UP_US;
    if (settings.guest) kill_as_guest();
    else kill(-1, SIGKILL);
}

void kill_all_resumed(uint64_t paused_us) {
    uint64_t latest = now_us() + GIVE_UP_US;
    if (!all_deadline_us) return;
    all_deadline_us += paused_us;
    if (all_deadline_us > latest) all_deadline_us = latest;
}

static bool all_have_ended(void) {
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) return false;
    for (struct command *c = commands; c; c = c->next)
        if (c->control.fd >= 0) return false;
    return true;
}

void command_check_ended_all(void) {
    if (!command_ending_all()) return;
    bool ended = all_have_ended();
    if (!ended && settings.guest) kill_as_guest();
    if (!ended && now_us() < all_deadline_us) return;
    uint32_t left = ended ? 0 : count_other_processes();
    all_deadline_us = 0;
    for (struct channel *ch = channel_first(), *next; ch; ch = next) {
        next = ch->next;
        if (!ch->kill_all) continue;
        size_t mark = frame_open(&outbox, RESPONSE_DONE, ch->id);
        add_number(&outbox, TAG_KILLED, all_killed);
        add_number(&outbox, TAG_SURVIVORS, left);
        frame_close(&outbox, mark);
        channel_close(ch);
    }
    outbox_wake();
}
