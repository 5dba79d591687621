/* The users that commands run as, and how a process becomes one of them.
 *
 * Users come from /etc/passwd and /etc/group of the image, which are read directly: a static program cannot load name
 * services. Whoever is root inside can write anything to these files, so what they say is only believed within the
 * range of ids that the sandbox has, and never if it is the agent's own id.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "process.h"

#define LAST_CAP 63
#define MAX_NAMES (1024u * 1024)

/* The capabilities that commands of root have, as in hardening.ROOT_CAPABILITIES: CHOWN DAC_OVERRIDE FOWNER FSETID KILL
 * SETGID SETUID NET_BIND_SERVICE */
#define ROOT_CAPS ((1u << 0) | (1u << 1) | (1u << 3) | (1u << 4) | (1u << 5) | (1u << 6) | (1u << 7) | (1u << 10))

static uint64_t bounding = ~0ull; /* the capabilities in the bounding set, read once by users_init */
static bool names_change; /* /etc/passwd may be written to */

struct cap_header {
    uint32_t version;
    int pid;
};
struct cap_data { uint32_t effective, permitted, inheritable; };
_Static_assert(sizeof(struct cap_header) == 8 && sizeof(struct cap_data) == 12, "the kernel's, which capset reads");

static char *next_part(char **line) {
    char *start = *line, *colon = start ? strchr(start, ':') : NULL;
    if (colon) *colon = 0;
    *line = colon ? colon + 1 : NULL;
    return start;
}

static bool number(const char *s, unsigned long *out) {
    if (!s || *s < '0' || *s > '9') return false;
    char *end;
    errno = 0;
    *out = strtoul(s, &end, 10);
    return *end == 0 && errno == 0 && *out <= 0xfffffffe;
}

/* Root inside may have put anything in the place of these files: nothing here may block, or take long. */
static FILE *open_names(const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= MAX_NAMES ? fdopen(fd, "r") : NULL;
    if (!f && fd >= 0) close(fd);
    return f;
}

static bool user_in_passwd(const char *wanted, struct user *out) {
    FILE *f = open_names("/etc/passwd");
    unsigned long wanted_uid = 0, uid, gid;
    bool by_number = number(wanted, &wanted_uid), found = false;
    char line[1024];
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line, *name = next_part(&rest);
        next_part(&rest);
        char *uid_text = next_part(&rest), *gid_text = next_part(&rest);
        next_part(&rest);
        char *home = next_part(&rest);
        if (!name || !number(uid_text, &uid) || !number(gid_text, &gid)) continue;
        if (by_number ? uid != wanted_uid : strcmp(name, wanted) != 0) continue;
        if (strlen(name) >= sizeof out->name) continue;
        found = true;
        out->uid = (uid_t)uid;
        out->gid = (gid_t)gid;
        memcpy(out->name, name, strlen(name) + 1);
        snprintf(out->home, sizeof out->home, "%s", home && *home == '/' ? home : "/");
    }
    if (f) fclose(f);
    if (!found && by_number) {
        found = true;
        out->uid = (uid_t)wanted_uid;
        out->gid = (gid_t)wanted_uid;
        snprintf(out->name, sizeof out->name, "%lu", wanted_uid);
        snprintf(out->home, sizeof out->home, "%s", settings.workspace);
    }
    return found;
}

static void add_groups(struct user *u) {
    u->groups[0] = u->gid;
    u->group_count = 1;
    FILE *f = open_names("/etc/group");
    if (!f) return;
    char line[4096];
    unsigned long gid;
    while (u->group_count < 32 && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line;
        next_part(&rest);
        next_part(&rest);
        if (!number(next_part(&rest), &gid) || !rest || gid == u->gid) continue;
        if (gid < settings.uid_low || gid > settings.uid_high) continue;
        for (char *save, *m = strtok_r(rest, ",", &save); m; m = strtok_r(NULL, ",", &save)) {
            if (strcmp(m, u->name) == 0) u->groups[u->group_count++] = (gid_t)gid;
            if (u->group_count == 32) break;
        }
    }
    fclose(f);
}

/* Finds the name of an id in /etc/passwd or /etc/group: in both of them the id is the third part of a line. */
struct known {
    unsigned long id;
    char name[64];
};
struct names {
    const char *path;
    struct known known[16];
    size_t count;
};

static const char *name_of(struct names *n, unsigned long id) {
    for (size_t i = 0; i < n->count && i < 16; i++)
        if (n->known[i].id == id) return n->known[i].name;
    struct known *k = &n->known[n->count++ % 16];
    k->id = id;
    snprintf(k->name, sizeof k->name, "%lu", id);
    FILE *f = open_names(n->path);
    char line[4096];
    unsigned long found;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line, *name = next_part(&rest);
        next_part(&rest);
        if (!number(next_part(&rest), &found) || found != id || !*name || strlen(name) >= sizeof k->name) continue;
        memcpy(k->name, name, strlen(name) + 1);
        break;
    }
    if (f) fclose(f);
    return k->name;
}

const char *user_name(uid_t uid) {
    static struct names users = {.path = "/etc/passwd"};
    return name_of(&users, uid);
}

const char *group_name(gid_t gid) {
    static struct names groups = {.path = "/etc/group"};
    return name_of(&groups, gid);
}

void users_init(void) {
    bounding = 0;
    for (int cap = 0; cap <= LAST_CAP; cap++)
        if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1) bounding |= 1ull << cap;
    struct statvfs root;
    names_change = statvfs("/etc", &root) != 0 || !(root.f_flag & ST_RDONLY);
}

/* Where root is allowed, NAME:GID is that user with this group alone: images may say so (USER name:group). */
static bool look_up(const char *name, struct user *out) {
    memset(out, 0, sizeof *out);
    char alone[sizeof out->name];
    const char *colon = strchr(name, ':');
    unsigned long gid = 0;
    if (colon) {
        size_t length = (size_t)(colon - name);
        if (settings.uid_low != 0 || length >= sizeof alone || !number(colon + 1, &gid)) return false;
        memcpy(alone, name, length);
        alone[length] = 0;
        name = alone;
    }
    if (!user_in_passwd(name, out)) return false;
    if (colon) out->gid = (gid_t)gid;
    /* No command may run with the agent's uid or with an id outside the sandbox's range. */
    if (out->uid < settings.uid_low || out->uid > settings.uid_high || out->uid == settings.agent_uid) return false;
    if (out->gid < settings.uid_low || out->gid > settings.uid_high || out->gid == settings.agent_uid) return false;
    if (colon) {
        out->groups[0] = out->gid;
        out->group_count = 1;
    } else {
        add_groups(out);
    }
    return true;
}

/* Remembers the last user if /etc is read-only, because then the answer cannot change. */
bool find_user(const char *name, struct user *out) {
    static struct user last;
    static char last_name[64];
    if (!names_change && strcmp(name, last_name) == 0) {
        *out = last;
        return true;
    }
    if (!look_up(name, out)) return false;
    last = *out;
    if (strlen(name) < sizeof last_name) memcpy(last_name, name, strlen(name) + 1);
    else last_name[0] = 0;
    return true;
}

/* Whether dropping from the bounding set failed only because a guest lacks the right to. That is harmless: what it
 * starts has no capability in force and cannot get one, because no file gives capabilities to a process with
 * no_new_privs. */
static bool lacks_setpcap(void) { return settings.guest && errno == EPERM; }

static bool change(const struct user *u, uid_t real) {
    uint32_t kept = u->uid == 0 ? ROOT_CAPS : 0;
    for (int cap = 0; cap <= LAST_CAP; cap++)
        if ((bounding & ~(uint64_t)kept) >> cap & 1 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && !lacks_setpcap())
            return false;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (setgroups((size_t)u->group_count, u->groups) != 0) return false;
    if (setresgid(u->gid, u->gid, u->gid) != 0) return false;
    if (setresuid(real, u->uid, real) != 0) return false;
    struct cap_header h = {0x20080522, 0};
    struct cap_data d[2] = {{kept, kept, 0}, {0, 0, 0}};
    return syscall(SYS_capset, &h, d) == 0;
}

bool become_user(const struct user *u) { return change(u, u->uid); }

bool act_as_user(const struct user *u) { return change(u, settings.agent_uid); }
