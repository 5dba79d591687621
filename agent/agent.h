/* What main.c starts: the connection to the worker, and the other programs of this binary. */
#ifndef WARREN_AGENT_H
#define WARREN_AGENT_H

/* connection.c */
void connection_take(int fd);
void connection_flush(void); /* once per turn of the main loop */
void connection_hear(void);  /* reads what the worker has sent, without waiting */

/* The programs that main.c chooses by its own name or by its first argument. */
int sudo_main(int argc, char **argv);
int keeper_main(int argc, char **argv);
int cell_main(int argc, char **argv);
int relay_main(int argc, char **argv);

#endif
