/*
 * libdatawarp as programs use it. The first argument names what to do, the others are paths that the
 * test has made. A check that fails names its line on stdout and ends the program with 1; the library
 * itself must never write anything.
 */
#define _GNU_SOURCE
#include <datawarp.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int checks;

static void is(int line, const char *what, long found, long wanted)
{
	checks++;
	if (found == wanted)
		return;
	printf("line %d: %s is %ld (%s), not %ld (%s)\n", line, what, found,
	       found < 0 ? strerror(-found) : "", wanted, wanted < 0 ? strerror(-wanted) : "");
	exit(1);
}
#define IS(found, wanted) is(__LINE__, #found, (found), (wanted))
#define TRUE(what) is(__LINE__, #what, !!(what), 1)

/* A path made of pieces; a few at a time live. */
static const char *at(const char *format, ...)
{
	static char paths[16][PATH_MAX];
	static int next;
	char *path = paths[next++ % 16];
	va_list pieces;
	va_start(pieces, format);
	vsnprintf(path, PATH_MAX, format, pieces);
	va_end(pieces);
	return path;
}

static void put(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	TRUE(file);
	fputs(text, file);
	IS(fclose(file), 0);
}

static int has(const char *path, const char *text)
{
	char found[256] = "";
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	fread(found, 1, sizeof(found) - 1, file);
	fclose(file);
	return strcmp(found, text) == 0;
}

struct counts { int complete, pending, deferred, failed; };

static struct counts file(const char *path)
{
	struct counts n = { -1, -1, -1, -1 };
	IS(dw_query_file_stage(path, &n.complete, &n.pending, &n.deferred, &n.failed), 0);
	IS(n.complete + n.pending + n.deferred + n.failed, 1);
	return n;
}

static struct counts tree(const char *path)
{
	struct counts n = { -1, -1, -1, -1 };
	IS(dw_query_directory_stage(path, &n.complete, &n.pending, &n.deferred, &n.failed), 0);
	return n;
}

static int asked(const char *path)
{
	int n;
	return dw_query_file_stage(path, &n, &n, &n, &n);
}

static int failures(const char *top, char *path, int *why)
{
	dw_failed_stage_t *handle;
	char next[PATH_MAX];
	int n = 0, len, errnum;
	IS(dw_open_failed_stage(top, &handle), 0);
	while ((len = dw_read_failed_stage(handle, next, sizeof next, &errnum)) > 0) {
		IS(len, (long)strlen(next));
		strcpy(path, next);
		*why = errnum;
		n++;
	}
	IS(len, 0);
	IS(dw_close_failed_stage(handle), 0);
	return n;
}

/* Files in and out, lists, directories, what was put off; errors of each. */
static void stages(const char *dw, const char *pfs)
{
	put(at("%s/in", pfs), "from afar");
	IS(dw_stage_file_in(at("%s/a", dw), at("%s/in", pfs)), 0);
	IS(dw_wait_file_stage(at("%s/a", dw)), 0);
	TRUE(has(at("%s/a", dw), "from afar"));
	IS(file(at("%s/a", dw)).complete, 1);

	/* The file is written anew and staged out to where it came from, twice. */
	for (int n = 0; n < 2; n++) {
		put(at("%s/a", dw), n ? "second" : "first");
		IS(dw_stage_file_out(at("%s/a", dw), at("%s/in", pfs), DW_STAGE_IMMEDIATE), 0);
		IS(dw_wait_file_stage(at("%s/a", dw)), 0);
		TRUE(has(at("%s/in", pfs), n ? "second" : "first"));
	}
	/* A relative path, with dots. */
	IS(chdir(dw), 0);
	IS(file("./a").complete, 1);
	IS(file("../" "./" "w/a").complete, 1);
	IS(chdir("/"), 0);

	/* Put off, asked for twice, elsewhere; taken back; put off again and begun early. */
	put(at("%s/d", dw), "deferred");
	IS(dw_stage_file_out(at("%s/d", dw), at("%s/d", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(dw_stage_file_out(at("%s/d", dw), at("%s/d", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(dw_stage_file_out(at("%s/d", dw), at("%s/e", pfs), DW_STAGE_AT_JOB_END), -EBUSY);
	IS(errno, EBUSY);
	IS(file(at("%s/d", dw)).deferred, 1);
	IS(dw_wait_file_stage(at("%s/d", dw)), -EDEADLK);
	IS(dw_stage_file_out(at("%s/d", dw), NULL, DW_REVOKE_STAGE_AT_JOB_END), 0);
	IS(asked(at("%s/d", dw)), -EINVAL);
	IS(dw_stage_file_out(at("%s/d", dw), NULL, DW_REVOKE_STAGE_AT_JOB_END), -EINVAL);
	IS(dw_stage_file_out(at("%s/d", dw), NULL, DW_ACTIVATE_DEFERRED_STAGE), -EINVAL);
	IS(dw_stage_file_out(at("%s/d", dw), at("%s/d", pfs), DW_STAGE_AT_JOB_END), 0);
	TRUE(access(at("%s/d", pfs), F_OK) != 0);
	IS(dw_stage_file_out(at("%s/d", dw), NULL, DW_ACTIVATE_DEFERRED_STAGE), 0);
	IS(dw_wait_file_stage(at("%s/d", dw)), 0);
	TRUE(has(at("%s/d", pfs), "deferred"));

	/* A directory in, and below it. */
	IS(mkdir(at("%s/set", pfs), 0755), 0);
	IS(mkdir(at("%s/set/sub", pfs), 0755), 0);
	for (int n = 0; n < 20; n++)
		put(at("%s/set/%s%d", pfs, n % 2 ? "sub/" : "", n), "set");
	IS(mkdir(at("%s/set", dw), 0755), 0);
	IS(dw_set_stage_concurrency(dw, 3), 0);
	IS(dw_stage_directory_in(at("%s/set", dw), at("%s/set", pfs)), 0);
	IS(dw_wait_directory_stage(at("%s/set", dw)), 0);
	IS(tree(at("%s/set", dw)).complete, 20);
	IS(tree(at("%s/set/sub", dw)).complete, 10);
	IS(file(at("%s/set/sub/19", dw)).complete, 1);
	TRUE(has(at("%s/set/sub/19", dw), "set"));

	/* Into the root of the instance, as with $DW_JOB_STRIPED; what it has stays. */
	IS(mkdir(at("%s/top", pfs), 0755), 0);
	put(at("%s/top/t", pfs), "top");
	IS(dw_stage_directory_in(dw, at("%s/top", pfs)), 0);
	IS(dw_wait_directory_stage(dw), 0);
	TRUE(has(at("%s/t", dw), "top") && has(at("%s/d", dw), "deferred"));
	IS(file(at("%s/t", dw)).complete, 1);
	put(at("%s/later", dw), "of the job's own");
	IS(asked(at("%s/later", dw)), -EINVAL);
	IS(dw_terminate_directory_stage(dw), 0);

	/* A directory out. A file that is made or changed afterwards does not pass for staged. */
	IS(mkdir(at("%s/home", pfs), 0755), 0);
	IS(dw_stage_directory_out(at("%s/set", dw), at("%s/home", pfs), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_directory_stage(at("%s/set/sub", dw)), 0);
	IS(dw_wait_file_stage(at("%s/set/sub/1", dw)), 0);
	TRUE(has(at("%s/home/sub/19", pfs), "set"));
	IS(file(at("%s/set/sub/1", dw)).complete, 1);
	put(at("%s/set/sub/new", dw), "new");
	put(at("%s/set/sub/1", dw), "changed");
	IS(asked(at("%s/set/sub/new", dw)), -EINVAL);
	IS(asked(at("%s/set/sub/1", dw)), -EINVAL);
	IS(tree(at("%s/set/sub", dw)).complete, 9);
	IS(dw_terminate_file_stage(at("%s/set/sub/3", dw)), 0);
	IS(file(at("%s/set/sub/3", dw)).complete, 1);

	/* A directory put off counts what it has now. */
	IS(dw_stage_directory_out(at("%s/set", dw), at("%s/home", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(tree(at("%s/set", dw)).deferred, 21);
	IS(dw_wait_directory_stage(at("%s/set", dw)), -EDEADLK);
	IS(dw_terminate_file_stage(at("%s/set/sub/3", dw)), -ENOTSUP);
	IS(dw_terminate_directory_stage(at("%s/set", dw)), 0);
	IS(tree(at("%s/set", dw)).deferred, 0);

	/* Lists. */
	IS(mkdir(at("%s/list", dw), 0755), 0);
	const char *in[] = { at("%s/set/0", pfs), at("%s/set/2", pfs), at("%s/set/sub/3", pfs), NULL };
	IS(dw_stage_list_in(at("%s/list", dw), in), 0);
	const char *list[] = { at("%s/list/0", dw), at("%s/list/2", dw), at("%s/list/3", dw), NULL };
	struct counts n;
	IS(dw_wait_list_stage(list), 0);
	IS(dw_query_list_stage(list, &n.complete, &n.pending, &n.deferred, &n.failed), 0);
	IS(n.complete, 3);
	IS(mkdir(at("%s/out", pfs), 0755), 0);
	IS(dw_stage_list_out(list, at("%s/out", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(dw_query_list_stage(list, &n.complete, &n.pending, &n.deferred, &n.failed), 0);
	IS(n.deferred, 3);
	IS(dw_stage_list_out(list, NULL, DW_ACTIVATE_DEFERRED_STAGE), 0);
	IS(dw_wait_list_stage(list), 0);
	TRUE(has(at("%s/out/3", pfs), "set"));
	IS(dw_stage_list_out(list, at("%s/out", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(dw_stage_list_out(list, NULL, DW_REVOKE_STAGE_AT_JOB_END), 0);
	IS(dw_query_list_stage(list, &n.complete, &n.pending, &n.deferred, &n.failed), 0);
	IS(n.complete, 3);
	IS(dw_stage_list_out(list, at("%s/out", pfs), DW_STAGE_AT_JOB_END), 0);
	IS(dw_terminate_list_stage(list), 0);
	/* One of them is refused: none is ordered. */
	const char *half[] = { at("%s/list/0", dw), at("%s/list/none", dw), NULL };
	IS(dw_stage_list_out(half, at("%s/out", pfs), DW_STAGE_AT_JOB_END), -ENOENT);
	IS(file(at("%s/list/0", dw)).deferred, 0);
	const char *twice[] = { at("%s/a", dw), at("%s/./a", dw), NULL };
	IS(dw_stage_list_out(twice, at("%s/out", pfs), DW_STAGE_IMMEDIATE), -EINVAL);
}

static void refusals(const char *dw, const char *pfs)
{
	int n, code;
	put(at("%s/plain", dw), "x");
	IS(mkdir(at("%s/dir", dw), 0755), 0);
	IS(asked(at("%s/plain", dw)), -EINVAL);
	IS(asked(at("%s/none", dw)), -ENOENT);
	IS(asked(at("%s/none/none", dw)), -ENOENT);
	IS(asked("/etc/passwd"), -EINVAL);
	IS(asked(""), -ENOENT);
	IS(asked("\xff"), -EILSEQ);
	IS(dw_wait_file_stage(at("%s/plain", dw)), -EINVAL);
	IS(dw_wait_directory_stage(at("%s/dir", dw)), -EINVAL);
	IS(dw_terminate_file_stage(at("%s/plain", dw)), -EINVAL);
	IS(dw_terminate_file_stage(at("%s/none", dw)), -ENOENT);
	IS(dw_terminate_directory_stage(at("%s/dir", dw)), -EINVAL);
	IS(dw_query_directory_stage(at("%s/dir", dw), &n, &n, &n, &n), -EINVAL);

	IS(dw_stage_file_in(at("%s/x", dw), at("%s/none", pfs)), -ENOENT);
	IS(dw_stage_file_in(at("%s/none/x", dw), "/etc/passwd"), -ENOENT);
	IS(dw_stage_file_in(at("%s/dir", dw), "/etc/passwd"), -EISDIR);
	IS(dw_stage_file_in(at("%s/x", dw), "/etc"), -EISDIR);
	IS(dw_stage_file_in(at("%s/x", dw), "/etc/shadow"), -EACCES);
	IS(dw_stage_directory_in(at("%s/dir", dw), "/etc/passwd"), -ENOTDIR);
	IS(dw_stage_directory_in(at("%s/none", dw), pfs), -ENOENT);
	IS(dw_stage_file_out("/etc/passwd", at("%s/p", pfs), DW_STAGE_IMMEDIATE), -EINVAL);
	IS(dw_stage_file_out(at("%s/plain", dw), "/etc/p", DW_STAGE_IMMEDIATE), -EACCES);
	IS(dw_stage_file_out(at("%s/plain", dw), at("%s/p", pfs), 7), -EINVAL);
	IS(dw_stage_file_out(at("%s/plain", dw), at("%s/q", dw), DW_STAGE_IMMEDIATE), -EINVAL);
	IS(dw_stage_directory_out(at("%s/dir", dw), at("%s/none", pfs), DW_STAGE_IMMEDIATE), -ENOENT);

	IS(dw_stage_file_in(NULL, pfs), -EINVAL);
	IS(dw_stage_file_in(dw, NULL), -EINVAL);
	IS(dw_stage_list_in(dw, NULL), -EINVAL);
	IS(dw_stage_list_out(NULL, pfs, DW_STAGE_IMMEDIATE), -EINVAL);
	IS(dw_stage_directory_out(NULL, NULL, DW_STAGE_IMMEDIATE), -EINVAL);
	IS(dw_query_file_stage(NULL, &n, &n, &n, &n), -EINVAL);
	IS(dw_query_file_stage(dw, NULL, &n, &n, &n), -EINVAL);
	IS(dw_query_list_stage(NULL, &n, &n, &n, &n), -EINVAL);
	IS(dw_wait_list_stage(NULL), -EINVAL);
	IS(dw_terminate_list_stage(NULL), -EINVAL);
	IS(dw_open_failed_stage(dw, NULL), -EINVAL);
	IS(dw_read_failed_stage(NULL, NULL, 0, NULL), -EINVAL);
	IS(dw_close_failed_stage(NULL), -EINVAL);
	IS(dw_set_stage_concurrency(dw, 0), -EINVAL);
	IS(dw_set_stage_concurrency("/etc", 1), -EINVAL);
	IS(dw_set_stage_concurrency(at("%s/none", dw), 1), -ENOENT);
	TRUE(dw_get_mds_path(NULL, 0) == NULL && errno == EINVAL);
	TRUE(dw_get_accounting_data_json(NULL, &code) == NULL);
	IS(code, -EINVAL);
	TRUE(dw_get_accounting_data_json("/etc", NULL) == NULL);
	IS(dw_wait_sync_complete(-1), -EBADF);
}

/* What a single node can truly say of stripes, servers and accounts. */
static void answers(const char *dw)
{
	int size, width, start, code = 1;
	int fd = open(dw, O_RDONLY);
	IS(dw_get_stripe_configuration(fd, &size, &width, &start), 0);
	TRUE(size == 8 << 20 && width == 1 && start == 0);
	IS(dw_set_stripe_configuration(fd, 8 << 20, 1), 0);
	IS(dw_set_stripe_configuration(fd, 8 << 20, 4), -ENOTSUP);
	IS(dw_set_stripe_configuration(fd, 1000, 1), -EINVAL);
	IS(dw_set_stripe_configuration(fd, 4096, 0), -EINVAL);
	IS(dw_set_stripe_configuration(12345, 4096, 1), -EBADF);
	IS(dw_get_stripe_configuration(fd, NULL, &width, &start), -EINVAL);
	IS(dw_get_stripe_configuration(0, &size, &width, &start), -EINVAL);
	/* Scratch has nothing behind it to sync to. */
	IS(dw_wait_sync_complete(fd), -EINVAL);
	close(fd);

	char *prefix = dw_get_mds_path(at("%s/", dw), 7);
	TRUE(prefix && strcmp(prefix, at("%s/", dw)) == 0);
	free(prefix);
	char *json = dw_get_accounting_data_json(dw, &code);
	IS(code, 0);
	puts(json);
	free(json);
}

/* A transfer that takes long was ordered by the test: TREE/slow goes out. */
static void slow(const char *dw, const char *pfs)
{
	IS(file(at("%s/tree/slow", dw)).pending, 1);
	IS(tree(at("%s/tree", dw)).pending, 1);
	IS(dw_stage_file_out(at("%s/tree/slow", dw), at("%s/s", pfs), DW_STAGE_IMMEDIATE), -EBUSY);
	IS(dw_stage_directory_out(at("%s/tree", dw), pfs, DW_STAGE_IMMEDIATE), -EBUSY);
	IS(dw_terminate_file_stage(at("%s/tree/slow", dw)), 0);
	IS(asked(at("%s/tree/slow", dw)), -EINVAL);
	TRUE(access(at("%s/slow", pfs), F_OK) != 0);
	IS(dw_stage_file_out(at("%s/tree/slow", dw), at("%s/s", pfs), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_directory_stage(at("%s/tree", dw)), 0);
}

static volatile int rang;
static void ring(int number)
{
	rang += number != 0;
}

/* Signals without SA_RESTART come all the time, and the wait goes on until the file is staged. */
static void waits(const char *dw)
{
	struct sigaction action = { .sa_handler = ring };
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
	IS(sigaction(SIGALRM, &action, NULL), 0);
	IS(setitimer(ITIMER_REAL, &often, NULL), 0);
	IS(file(at("%s/slow", dw)).pending, 1);
	put(at("%s/waiting", dw), "");
	IS(dw_wait_file_stage(at("%s/slow", dw)), 0);
	IS(setitimer(ITIMER_REAL, &never, NULL), 0);
	IS(file(at("%s/slow", dw)).complete, 1);
	TRUE(rang > 100);
}

/* FULL has no room for DW/big; DW/mixed has a file that cannot be read; PFS/set, too. */
static void failing(const char *dw, const char *full, const char *pfs)
{
	char path[PATH_MAX];
	int why = 0;
	IS(failures(dw, path, &why), 0);
	IS(dw_stage_file_out(at("%s/big", dw), at("%s/big", full), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_file_stage(at("%s/big", dw)), -ENOSPC);
	IS(file(at("%s/big", dw)).failed, 1);
	IS(failures(dw, path, &why), 1);
	TRUE(strcmp(path, at("%s/big", dw)) == 0);
	IS(why, -ENOSPC);
	/* A buffer that is too small loses nothing. */
	dw_failed_stage_t *handle;
	IS(dw_open_failed_stage(dw, &handle), 0);
	IS(dw_read_failed_stage(handle, path, 3, &why), -ENAMETOOLONG);
	TRUE(dw_read_failed_stage(handle, path, sizeof path, &why) > 3);
	IS(dw_read_failed_stage(handle, path, sizeof path, &why), 0);
	IS(dw_close_failed_stage(handle), 0);
	/* Started anew, elsewhere: it has not failed any more. */
	IS(dw_stage_file_out(at("%s/big", dw), at("%s/big", pfs), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_file_stage(at("%s/big", dw)), 0);
	IS(failures(dw, path, &why), 0);
	/* Failed again, and given up. */
	IS(dw_stage_file_out(at("%s/big", dw), at("%s/big", full), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_file_stage(at("%s/big", dw)), -ENOSPC);
	IS(dw_terminate_file_stage(at("%s/big", dw)), 0);
	IS(failures(dw, path, &why), 0);

	IS(mkdir(at("%s/mixed", pfs), 0755), 0);
	IS(dw_stage_directory_out(at("%s/mixed", dw), at("%s/mixed", pfs), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_directory_stage(at("%s/mixed", dw)), -EACCES);
	struct counts n = tree(at("%s/mixed", dw));
	TRUE(n.failed == 1 && n.complete == 2);
	IS(file(at("%s/mixed/shut", dw)).failed, 1);
	IS(file(at("%s/mixed/1", dw)).complete, 1);
	IS(dw_wait_file_stage(at("%s/mixed/1", dw)), 0);
	IS(dw_wait_file_stage(at("%s/mixed/shut", dw)), -EACCES);
	IS(failures(at("%s/mixed", dw), path, &why), 1);
	TRUE(strcmp(path, at("%s/mixed/shut", dw)) == 0);
	IS(why, -EACCES);
	IS(unlink(at("%s/mixed/shut", dw)), 0);
	IS(failures(dw, path, &why), 0);
	IS(dw_terminate_directory_stage(at("%s/mixed", dw)), 0);

	IS(mkdir(at("%s/set", dw), 0755), 0);
	IS(dw_stage_directory_in(at("%s/set", dw), at("%s/set", pfs)), 0);
	IS(dw_wait_directory_stage(at("%s/set", dw)), -EACCES);
	IS(failures(dw, path, &why), 1);
	TRUE(strcmp(path, at("%s/set/shut", dw)) == 0);
	IS(why, -EACCES);
}

struct turn { const char *dw, *pfs; int number; };

static void *one_of_many(void *given)
{
	struct turn *turn = given;
	for (int n = 0; n < 5; n++) {
		const char *name = turn->number % 2 ? "odd" : "even";
		char inside[PATH_MAX], outside[PATH_MAX];
		snprintf(inside, sizeof inside, "%s/%s-%d-%d", turn->dw, name, turn->number, n);
		snprintf(outside, sizeof outside, "%s/%s-%d-%d", turn->pfs, name, turn->number, n);
		int fd = open(inside, O_CREAT | O_WRONLY, 0644);
		if (fd < 0 || write(fd, name, 3) != 3 || close(fd) != 0)
			return "write";
		if (dw_stage_file_out(inside, outside, DW_STAGE_IMMEDIATE) != 0)
			return "stage";
		if (dw_wait_file_stage(inside) != 0 || access(outside, F_OK) != 0)
			return "wait";
	}
	return NULL;
}

/* Eight threads at once, then a child of a process that has them. */
static void crowd(const char *dw, const char *pfs)
{
	pthread_t threads[8];
	struct turn turns[9];
	for (int n = 0; n < 8; n++) {
		turns[n] = (struct turn){ dw, pfs, n };
		IS(pthread_create(&threads[n], NULL, one_of_many, &turns[n]), 0);
	}
	pid_t child = fork();
	if (child == 0) {
		turns[8] = (struct turn){ dw, pfs, 8 };
		_exit(dw_set_stage_concurrency(dw, 2) != 0 || one_of_many(&turns[8]) != NULL);
	}
	int status;
	IS(waitpid(child, &status, 0), child);
	IS(status, 0);
	for (int n = 0; n < 8; n++) {
		void *failed;
		IS(pthread_join(threads[n], &failed), 0);
		if (failed)
			printf("thread %d: %s\n", n, (char *)failed);
		TRUE(failed == NULL);
	}
	IS(tree(dw).complete, 45);
}

/* The order of calls of AXL: files out, asked after until none is pending, waited for, stopped. */
static void axl(const char *dw, const char *pfs)
{
	enum { FILES = 6 };
	char from[FILES][PATH_MAX], to[FILES][PATH_MAX];
	int landed[FILES] = { 0 }, all = 0;
	for (int n = 0; n < FILES; n++) {
		snprintf(from[n], PATH_MAX, "%s/rank_%d.ckpt", dw, n);
		snprintf(to[n], PATH_MAX, "%s/rank_%d.ckpt", pfs, n);
		put(from[n], from[n]);
		IS(dw_stage_file_out(from[n], to[n], DW_STAGE_IMMEDIATE), 0);
	}
	while (!all) {
		int pending = 0, failed = 0;
		for (int n = 0; n < FILES; n++) {
			if (landed[n])
				continue;
			struct counts now = file(from[n]);
			landed[n] = now.complete;
			pending += now.pending + now.deferred;
			failed += now.failed;
		}
		IS(failed, 0);
		all = pending == 0;
		usleep(1000);
	}
	for (int n = 0; n < FILES; n++) {
		IS(dw_wait_file_stage(from[n]), 0);
		TRUE(has(to[n], from[n]));
		IS(dw_terminate_file_stage(from[n]), 0);
	}
}

/* That of libhio: a dataset is put off to the job's end, the one before it is taken back and removed. */
static void hio(const char *dw, const char *pfs)
{
	for (int id = 1; id <= 3; id++) {
		const char *set = at("%s/ctx.hio/set/%d", dw, id), *home = at("%s/ctx.hio/set/%d", pfs, id);
		mkdir(at("%s/ctx.hio", dw), 0755), mkdir(at("%s/ctx.hio/set", dw), 0755);
		mkdir(at("%s/ctx.hio", pfs), 0755), mkdir(at("%s/ctx.hio/set", pfs), 0755);
		IS(mkdir(set, 0755), 0);
		put(at("%s/element", set), set);
		IS(mkdir(home, 0755), 0);
		IS(dw_stage_directory_out(set, home, DW_STAGE_AT_JOB_END), 0);
		if (id == 1)
			continue;
		const char *old = at("%s/ctx.hio/set/%d", dw, id - 1);
		IS(dw_stage_directory_out(old, NULL, DW_REVOKE_STAGE_AT_JOB_END), 0);
		IS(unlink(at("%s/element", old)), 0);
		IS(rmdir(old), 0);
		IS(rmdir(at("%s/ctx.hio/set/%d", pfs, id - 1)), 0);
	}
	/* One that goes at once is removed when something of it is complete: then all of it must be. */
	char now[PATH_MAX], home[PATH_MAX];
	snprintf(now, sizeof now, "%s/ctx.hio/now", dw);
	snprintf(home, sizeof home, "%s/ctx.hio/now", pfs);
	IS(mkdir(now, 0755), 0);
	IS(mkdir(home, 0755), 0);
	for (int n = 0; n < 200; n++)
		put(at("%s/%d", now, n), "now");
	IS(dw_stage_directory_out(now, home, DW_STAGE_IMMEDIATE), 0);
	int complete = 0, n;
	while (!complete) {
		IS(dw_query_directory_stage(now, &complete, &n, &n, &n), 0);
		usleep(1000);
	}
	IS(complete, 200);
	TRUE(has(at("%s/199", home), "now"));
}

/* Those of Ioss and of SPARTA: begun only while nothing is pending, and waited for at the next. */
static void ioss(const char *dw, const char *pfs)
{
	const char *from = at("%s/mesh.e", dw), *to = at("%s/mesh.e", pfs);
	for (int step = 0; step < 3; step++) {
		int complete = 0, pending = 0, deferred = 0, failed = 0;
		put(from, at("step %d", step));
		int rc = dw_query_file_stage(from, &complete, &pending, &deferred, &failed);
		IS(rc, step ? 0 : -EINVAL);
		if (pending)
			IS(dw_wait_file_stage(from), 0);
		IS(dw_stage_file_out(from, to, DW_STAGE_IMMEDIATE), 0);
		IS(dw_wait_file_stage(from), 0);
		TRUE(has(to, at("step %d", step)));
	}
}

/* A file of a cache. */
static void cache(const char *mount, const char *store)
{
	int fd = open(at("%s/dirty", mount), O_CREAT | O_WRONLY, 0644);
	IS(write(fd, "written", 7), 7);
	TRUE(!has(at("%s/dirty", store), "written"));
	IS(dw_wait_sync_complete(fd), 0);
	TRUE(has(at("%s/dirty", store), "written"));
	close(fd);
	fd = open(mount, O_RDONLY);
	IS(dw_wait_sync_complete(fd), 0);
	close(fd);
	IS(dw_stage_file_out(at("%s/dirty", mount), at("%s/dirty", store), DW_STAGE_IMMEDIATE), 0);
	IS(dw_wait_file_stage(at("%s/dirty", mount)), 0);
	IS(dw_stage_file_out(at("%s/dirty", mount), "/tmp/elsewhere", DW_STAGE_IMMEDIATE), -EINVAL);
}

/* The daemon is away. */
static void away(const char *dw)
{
	IS(asked(dw), -ECONNREFUSED);
	IS(dw_wait_file_stage("/"), -ECONNREFUSED);
	IS(dw_set_stage_concurrency("/", 1), -ECONNREFUSED);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *dw = argv[2], *pfs = argc > 3 ? argv[3] : "";
	struct { const char *name; void (*run)(const char *, const char *); } two[] = {
		{ "stages", stages }, { "refusals", refusals }, { "slow", slow }, { "crowd", crowd },
		{ "axl", axl }, { "hio", hio }, { "ioss", ioss }, { "cache", cache },
	};
	for (size_t n = 0; n < sizeof two / sizeof *two; n++)
		if (strcmp(what, two[n].name) == 0)
			two[n].run(dw, pfs);
	if (strcmp(what, "answers") == 0)
		answers(dw);
	if (strcmp(what, "waits") == 0)
		waits(dw);
	if (strcmp(what, "away") == 0)
		away(dw);
	if (strcmp(what, "failing") == 0 && argc > 4)
		failing(dw, pfs, argv[4]);
	printf("%d checks\n", checks);
	return checks == 0;
}
