/*
 * DataWarp's C interface, over the instances and transfers of a forebay node daemon.
 *
 * Functions that return int return 0, or the negative number of an error of <errno.h>, which is in
 * errno, too. A path in an instance ("dw") is where the instance shows, as in $DW_JOB_STRIPED; "pfs" is
 * any other path that the node sees. Paths may be relative. All functions may be called by several
 * threads at once, and after fork. They ask the daemon at $FOREBAY_NODE_SOCKET or /run/forebay/node.sock.
 *
 *   -EINVAL        a null pointer; a dw path in no instance of yours; nothing of it was staged
 *   -ENOENT        the file is not there
 *   -ECONNREFUSED  no node daemon runs here
 *   -EAGAIN, -ETIMEDOUT  the daemon or its registry does not answer: try again
 *   -EILSEQ        a path that is not UTF-8
 *   -EPROTO        the daemon is of another version, and says what this library does not know
 *   -EIO           a failure that the system gave no number
 *
 * What else they return is said at each. See "Programs that speak DataWarp" in JOBS.md.
 */
#ifndef FOREBAY_DATAWARP_H
#define FOREBAY_DATAWARP_H

#include <stdint.h>
#include <sys/types.h>

/* The interface has dw_wait_sync_complete. */
#ifndef DW_PH_2
#define DW_PH_2 1
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a stage-out is to do. */
enum dw_stage_type {
	DW_STAGE_IMMEDIATE,         /* begin now */
	DW_STAGE_AT_JOB_END,        /* put off: begin when the instance goes */
	DW_REVOKE_STAGE_AT_JOB_END, /* take back what was put off; pfs is not looked at */
	DW_ACTIVATE_DEFERRED_STAGE  /* begin now what was put off; pfs is not looked at */
};

/*
 * Stages. Each call returns when the order is on record; a transfer carries it out, also when the
 * program, the job or the daemon ends. A file appears at its destination when it is whole and synced.
 *
 *   -EBUSY    a stage of the file, of its directory or of a file below it is active, or was put off to
 *             another destination. Putting off the same again is no error.
 *   -EISDIR, -ENOTDIR, -EACCES, -ENOENT  as seen when the call is made
 *   -EAGAIN, -EDQUOT  the daemon takes no more at the moment, or no more of yours
 *
 * Of an instance that is a cache, pfs has to be the same file in its backing store (-EINVAL else).
 * Directories are staged with all that is below them, into a directory that is there. Of what a
 * directory that was put off has, all counts that is there when the instance goes.
 */
int dw_stage_file_in(const char *dw_file, const char *pfs_file);
int dw_stage_directory_in(const char *dw_dir, const char *pfs_dir);
int dw_stage_file_out(const char *dw_file, const char *pfs_file, enum dw_stage_type type);
int dw_stage_directory_out(const char *dw_dir, const char *pfs_dir, enum dw_stage_type type);

/*
 * Lists are arrays of paths that end in NULL, with at most 4096 files (-E2BIG). Each file keeps its name
 * in the directory, so a name may not come twice (-EINVAL). If one of them is refused, none is staged.
 */
int dw_stage_list_in(const char *dw_dir, const char **pfs_files);
int dw_stage_list_out(const char **dw_files, const char *pfs_dir, enum dw_stage_type type);

/*
 * How many files of an instance later stages of this process copy at once: 1 to 256, more is taken for
 * 256. Caches choose themselves. -ENOSPC: it was said for 64 instances already.
 */
int dw_set_stage_concurrency(const char *dw_instance, unsigned int files_at_once);

/*
 * How many files are staged, active or waiting, put off, and failed. Of a single file one number is 1:
 * that of its newest stage, or of the newest of a directory above it. Files of a directory are pending
 * until all of them are staged and synced. A stage that was terminated or revoked counts as none.
 */
int dw_query_file_stage(const char *dw_file, int *complete, int *pending, int *deferred, int *failed);
int dw_query_directory_stage(const char *dw_dir, int *complete, int *pending, int *deferred,
                             int *failed);
int dw_query_list_stage(const char **dw_files, int *complete, int *pending, int *deferred, int *failed);

/*
 * Wait until nothing is pending; signals do not end it. 0 says that all is staged; else the error of a
 * stage that failed, -ECANCELED if it was terminated meanwhile, -EDEADLK if all that is left was put off
 * until the job ends. The daemon may be away for five minutes.
 */
int dw_wait_file_stage(const char *dw_file);
int dw_wait_directory_stage(const char *dw_dir);
int dw_wait_list_stage(const char **dw_files);

/*
 * End what is pending, take back what was put off, and give up what failed. What is complete stays so.
 * -ENOTSUP: the file is staged with its directory, which ends as a whole; -ETIMEDOUT: it was told to end
 * a minute ago and has not.
 */
int dw_terminate_file_stage(const char *dw_file);
int dw_terminate_directory_stage(const char *dw_dir);
int dw_terminate_list_stage(const char **dw_files);

/*
 * The files at and below a directory whose stage failed, as they were when it was opened. A file is one
 * of them until it is staged anew, terminated, or (of a stage-out) unlinked. Of a transfer that leaves
 * more than 1000 files (of a stage-in 100) the others have no name here.
 *
 * read returns the length of the path, or 0 after the last; *why is a negative error number.
 * -ENAMETOOLONG: the buffer is too small, and the same file comes again.
 */
typedef struct dw_failed_stage_state dw_failed_stage_t;
int dw_open_failed_stage(const char *dw_instance, dw_failed_stage_t **handle);
int dw_read_failed_stage(dw_failed_stage_t *handle, char *path, int path_size, int *why);
int dw_close_failed_stage(dw_failed_stage_t *handle);

/*
 * A file of an instance is on one node: it has one stripe, of which get says 8 MiB, width 1, index 0.
 * set takes width 1 and changes nothing; more stripes are -ENOTSUP, a size that is no multiple of 4096
 * -EINVAL. -EBADF: nothing is open there.
 */
int dw_set_stripe_configuration(int fd, int stripe_size, int stripe_width);
int dw_get_stripe_configuration(int fd, int *stripe_size, int *stripe_width, int *starting_index);

/*
 * The prefix for a key's files: there is one server, so the root itself. The caller frees it. NULL and
 * errno: it is in no instance.
 */
char *dw_get_mds_path(const char *dw_root, uint64_t key);

/*
 * Accounts of the instance, as JSON with DataWarp's keys; numbers that are not kept are left out. The
 * caller frees it. NULL: *code is a negative error number.
 */
char *dw_get_accounting_data_json(const char *path, int *code);

/*
 * Wait until what was written to a file or directory of a cache is on its backing store. -EINVAL: it is
 * in no cache of a node daemon; else the error of the flush.
 */
int dw_wait_sync_complete(int fd);

#ifdef __cplusplus
}
#endif

#endif
