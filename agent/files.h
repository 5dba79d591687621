/* File operations.
 *
 * file_jobs.c is the agent's side, which forks a process for each operation; files.c, tree.c, watching.c and search.c
 * run in that process. They use channel.h (file_jobs.c only), request.h and process.h. */
#ifndef WARREN_FILES_H
#define WARREN_FILES_H

#include "process.h"
#include "request.h"

/* file_jobs.c */
struct job;
/* `ending`: everything in the sandbox is being ended, so the operation is refused. */
void job_start(uint32_t channel, struct fields f, bool ending);
void job_data(struct job *j, const uint8_t *p, size_t n);
void job_eof(struct job *j);
void job_abandon(struct job *j);
void job_credit(struct job *j);
bool job_has(pid_t pid);
bool job_any(void);
void job_continue_all(void);

/* files.c. Most functions below return 0 or an errno value; those with a `reply` fill it with fields. */
/* Does the operation; it may also return a negative enum code, and then `reply` holds a sentence or nothing. */
int file_run(const struct file_request *r, struct buf *reply);
enum code code_of(int error);
int make_parents(const struct file_request *r, const char *path);
struct stat;
void add_stat(struct buf *b, const char *path, const struct stat *st);
/* Adds what costs more to find out: names of the owners, what a link leads to, metadata. */
void add_details(struct buf *b, const char *path, const struct stat *st);
void copy_metadata(int from, int to);

/* tree.c */
int tree_list(const struct file_request *r);
int tree_remove(const char *path);
int tree_move(const char *from, const char *to);
int tree_pack(const struct file_request *r);
int tree_unpack(const struct file_request *r, struct buf *reply);
bool join_path(char *to, size_t size, const char *dir, const char *name); /* false with errno if it is too long */
bool is_dot_entry(const char *name);
struct dirent;
int sorted_entries(const char *dir, struct dirent ***entries); /* as scandir(3), by name, without . and .. */

/* watching.c, search.c */
int tree_watch(const struct file_request *r);
int tree_search(const struct file_request *r, struct buf *reply);

#endif
