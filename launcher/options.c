/* Reads the options of the command line, or of the plan on stdin; launch.c lists them.
 *
 * Every option but a few flags has a value. Values are kept as they are, and whoever uses one checks it.
 */
#include "launch.h"

uint64_t number(const char *name, const char *text) {
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end || *text < '0' || *text > '9') usage("%s needs a number, not '%s'", name, text);
    return value;
}

static void append(struct list *list, const char *name, const char *value) {
    if (list->count == MANY) usage("more than %d times %s", MANY, name);
    list->items[list->count++] = value;
}

static int read_direct_option(struct options *o, const char *name, const char *value) {
    if (!strcmp(name, "--id")) o->id = value;
    else if (!strcmp(name, "--pid-file")) o->pid_file = value;
    else if (!strcmp(name, "--hostname")) o->hostname = value;
    else if (!strcmp(name, "--into")) o->into = value;
    else if (!strcmp(name, "--filter")) o->filter = number(name, value);
    else if (!strcmp(name, "--filter-sha256")) o->filter_digest = value;
    else if (!strcmp(name, "--keep")) o->keep = number(name, value);
    else if (!strcmp(name, "--oom-score")) o->oom_score = number(name, value);
    else if (!strcmp(name, "--cgroup")) append(&o->cgroups, name, value);
    else if (!strcmp(name, "--enable")) append(&o->enabled, name, value);
    else if (!strcmp(name, "--set")) append(&o->settings, name, value);
    else if (!strcmp(name, "--try-set")) append(&o->tried, name, value);
    else if (!strcmp(name, "--allow-device")) append(&o->allowed, name, value);
    else if (!strcmp(name, "--sysctl")) append(&o->sysctls, name, value);
    else if (!strcmp(name, "--mount")) append(&o->mounts, name, value);
    else if (!strcmp(name, "--mask")) append(&o->masks, name, value);
    else if (!strcmp(name, "--read-only")) append(&o->read_only, name, value);
    else if (!strcmp(name, "--capability")) append(&o->capabilities, name, value);
    else if (!strcmp(name, "--env")) append(&o->environment, name, value);
    else return 0;
    return 1;
}

static void read_option(struct options *o, const char *name, const char *value) {
    if (!strcmp(name, "--at")) o->at = value;
    else if (!strcmp(name, "--agent")) o->agent = value;
    else if (!strcmp(name, "--root")) o->root = value;
    else if (!strcmp(name, "--disk-fd")) o->disk_fd = number(name, value);
    else if (!strcmp(name, "--tmpfs")) o->tmpfs = value;
    else if (!strcmp(name, "--pts")) o->pts = value;
    else if (!strcmp(name, "--move")) o->move = value;
    else if (!strcmp(name, "--mapped")) o->mapped = value;
    else if (!strcmp(name, "--terminals")) o->terminals = number(name, value);
    else if (!strcmp(name, "--worker")) o->worker = number(name, value);
    else if (!strcmp(name, "--base")) o->base = number(name, value);
    else if (!strcmp(name, "--owner")) o->owner = number(name, value);
    else if (!strcmp(name, "--nofile")) o->nofile = number(name, value);
    else if (!strcmp(name, "--memlock")) o->memlock = number(name, value);
    else if (!strcmp(name, "--fsize")) o->fsize = number(name, value);
    else if (!strcmp(name, "--pid")) o->pid = number(name, value);
    else if (!strcmp(name, "--pidfd")) o->pidfd = number(name, value);
    else if (!strcmp(name, "--volume-fd")) o->volume_fd = number(name, value);
    else if (!strcmp(name, "--loop")) o->loop = number(name, value) + 1;
    else if (!strcmp(name, "--memory")) o->memory = number(name, value);
    else if (!strcmp(name, "--cpus")) o->cpus = number(name, value);
    else if (!strcmp(name, "--changes")) o->changes = number(name, value);
    else if (!strcmp(name, "--layer")) append(&o->layers, name, value);
    else if (!strcmp(name, "--own")) append(&o->owned, name, value);
    else if (!strcmp(name, "--seed")) append(&o->seeds, name, value);
    else if (!strcmp(name, "--tree")) append(&o->trees, name, value);
    else if (!strcmp(name, "--dir")) append(&o->dirs, name, value);
    else if (!strcmp(name, "--device")) append(&o->devices, name, value);
    else if (!strcmp(name, "--hide")) append(&o->hidden, name, value);
    else if (!o->direct || !read_direct_option(o, name, value)) usage("unknown option %s", name);
}

void read_options(struct options *o, char **argv) {
    for (; *argv; argv++) {
        if (!strcmp(*argv, "--")) {
            o->command = argv + 1;
            return;
        }
        if (o->direct && !strcmp(*argv, "--wait")) {
            o->wait = 1;
            continue;
        }
        if (!strcmp(*argv, "--try")) {
            o->try_only = 1;
            continue;
        }
        if (!strcmp(*argv, "--saved")) {
            o->saved = 1;
            continue;
        }
        if (!strcmp(*argv, "--writable")) {
            o->writable = 1;
            continue;
        }
        if (!strcmp(*argv, "--read-only-volume")) {
            o->read_only_volume = 1;
            continue;
        }
        if (!argv[1]) usage("%s needs a value", *argv);
        read_option(o, argv[0], argv[1]);
        argv++;
    }
}
