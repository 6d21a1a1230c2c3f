// Preloaded into the command by the fault harness (tests/faults/shim.py): counts the calls of the command on files
// under one folder, and its allocations of 1 MB and more between the start and the end of main, and makes the n-th of a
// kind fail. The calls are counted over all processes of a command.
//
//   FAULTS_ROOT   the folder, an absolute path without links
//   FAULTS_STATE  a file of zeros, as large as struct State, which all processes share
//   FAULTS_LOG    every counted call becomes a line of this file: KIND PATH
//   FAULTS_KIND, FAULTS_NTH, FAULTS_ERROR   which call fails, and how: the number of an error; -1: a write is short,
//   only
//                 half of its bytes are written; -2: the disk is full, this write is short, and every later call that
//                 needs space, or memory, fails
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind { OPEN, READ_OPEN, READ, WRITE, FSYNC, RENAME, MKDIR, UNLINK, TRUNCATE, LINK, CLOSE, LOCK, MEMORY, KINDS };
static const char* const kind_names[KINDS] = {"open",   "read_open", "read", "write", "fsync", "rename", "mkdir",
                                              "unlink", "truncate",  "link", "close", "lock",  "memory"};
enum { SHORT = -1, FULL = -2 };
enum { LARGE = 1000000 };  // bytes of an allocation that counts

struct State {
  _Atomic uint64_t count[KINDS];
  _Atomic uint64_t fired;
  char path[PATH_MAX];  // of the call that failed
};

static struct State* state;  // null: not set up yet, or not wanted
static char root[PATH_MAX];
static size_t root_length;
static int plan_kind = -1, plan_error, log_descriptor = -1;
static uint64_t plan_nth;
static int inside_main;

#define REAL(name)               \
  static __typeof__(&name) real; \
  if (real == NULL) real = (__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name)

// Counts a call. Returns 0, an error, SHORT or FULL.
static int count(enum Kind kind, const char* path) {
  if (state == NULL) return 0;
  const uint64_t n = atomic_fetch_add(&state->count[kind], 1) + 1;
  if (log_descriptor >= 0) {
    char line[PATH_MAX + 32];
    const int length = snprintf(line, sizeof line, "%s %s\n", kind_names[kind], path);
    syscall(SYS_write, log_descriptor, line, (size_t)length);
  }
  if ((int)kind == plan_kind && n == plan_nth) {
    strcpy(state->path, path);
    atomic_store(&state->fired, 1);
    return plan_error == FULL && kind != WRITE ? (kind == MEMORY ? ENOMEM : ENOSPC) : plan_error;
  }
  if (plan_error != FULL || atomic_load(&state->fired) == 0) return 0;
  if (plan_kind == MEMORY) return kind == MEMORY ? ENOMEM : 0;
  return kind == WRITE || kind == OPEN || kind == MKDIR || kind == LINK ? ENOSPC : 0;
}

static int is_under(const char* path) {
  return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == '\0');
}

// The path of an open file. Returns 0 if it is not under the folder.
static int path_of(int descriptor, char* path) {
  if (state == NULL || descriptor < 0) return 0;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const int before = errno;
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  errno = before;
  if (length <= 0) return 0;
  path[length] = '\0';
  return is_under(path);
}

// `name`, relative to the folder `at`, as an absolute path. Returns 0 if it is not under the folder.
static int absolute(int at, const char* name, char* path) {
  if (state == NULL || name == NULL) return 0;
  if (name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
    return is_under(path);
  }
  char folder[PATH_MAX] = "";
  if (at == AT_FDCWD) {
    if (getcwd(folder, sizeof folder) == NULL) return 0;
  } else if (!path_of(at, folder)) {
    return 0;
  }
  if (strlen(folder) + strlen(name) + 2 > PATH_MAX) return 0;
  strcpy(path, folder);
  strcat(strcat(path, "/"), name);
  return is_under(path);
}

// Counts a call on a path or on an open file, if it is under the folder, and returns -1 from the hook if it fails.
#define FAIL_AT(kind, at, name)                                       \
  char path[PATH_MAX];                                                \
  const int error = absolute(at, name, path) ? count(kind, path) : 0; \
  if (error != 0) return errno = error, -1
#define FAIL_ON(kind, descriptor)                                      \
  char path[PATH_MAX];                                                 \
  const int error = path_of(descriptor, path) ? count(kind, path) : 0; \
  if (error != 0) return errno = error, -1

// ------------------------------------------------------------------------------------------------- opening, closing

static enum Kind kind_of_open(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0 ? OPEN : READ_OPEN;
}

static int open_at(int at, const char* name, int flags, mode_t mode) {
  FAIL_AT(kind_of_open(flags), at, name);
  return (int)syscall(SYS_openat, at, name, flags, mode);
}

#define OPEN_HOOK(hook, at_parameter, at)                   \
  int hook(at_parameter const char* name, int flags, ...) { \
    va_list more;                                           \
    va_start(more, flags);                                  \
    const mode_t mode = va_arg(more, mode_t);               \
    va_end(more);                                           \
    return open_at(at, name, flags, mode);                  \
  }
#define COMMA ,
OPEN_HOOK(open, , AT_FDCWD)
OPEN_HOOK(open64, , AT_FDCWD)
OPEN_HOOK(openat, int at COMMA, at)
OPEN_HOOK(openat64, int at COMMA, at)
int creat(const char* name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int __open_2(const char* name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }
int __open64_2(const char* name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }
int __openat_2(int at, const char* name, int flags) { return open_at(at, name, flags, 0); }

static int fopen_error(const char* name, const char* mode) {
  char path[PATH_MAX];
  return absolute(AT_FDCWD, name, path) ? count(mode[strcspn(mode, "wa+")] != '\0' ? OPEN : READ_OPEN, path) : 0;
}
FILE* fopen(const char* name, const char* mode) {
  REAL(fopen);
  const int error = fopen_error(name, mode);
  return error == 0 ? real(name, mode) : (errno = error, NULL);
}
FILE* fopen64(const char* name, const char* mode) {
  REAL(fopen64);
  const int error = fopen_error(name, mode);
  return error == 0 ? real(name, mode) : (errno = error, NULL);
}

// The file is closed in any case, as the kernel does it. Only a file that was written to can lose something.
static int close_error(int descriptor) {
  char path[PATH_MAX];
  if (!path_of(descriptor, path)) return 0;
  return (fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY ? count(CLOSE, path) : 0;
}
int close(int descriptor) {
  const int error = close_error(descriptor);
  const int result = (int)syscall(SYS_close, descriptor);
  return error == 0 ? result : (errno = error, -1);
}
int fclose(FILE* file) {
  REAL(fclose);
  const int error = file == NULL ? 0 : close_error(fileno(file));
  const int result = real(file);
  return error == 0 ? result : (errno = error, EOF);
}

// ------------------------------------------------------------------------------------------------- reading, writing

ssize_t read(int descriptor, void* bytes, size_t size) {
  FAIL_ON(READ, descriptor);
  return syscall(SYS_read, descriptor, bytes, size);
}
ssize_t __read_chk(int descriptor, void* bytes, size_t size, size_t room) {
  if (size > room) abort();
  return read(descriptor, bytes, size);
}

// The part of a write that is to be done; -1: none, and errno is set.
static ssize_t allowed(int descriptor, size_t size) {
  char path[PATH_MAX];
  const int error = path_of(descriptor, path) ? count(WRITE, path) : 0;
  if (error == 0) return (ssize_t)size;
  if (error == SHORT || error == FULL) return (ssize_t)(size / 2 > 0 ? size / 2 : 1);
  errno = error;
  return -1;
}
ssize_t write(int descriptor, const void* bytes, size_t size) {
  const ssize_t part = allowed(descriptor, size);
  return part < 0 ? -1 : syscall(SYS_write, descriptor, bytes, (size_t)part);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t at) {
  const ssize_t part = allowed(descriptor, size);
  return part < 0 ? -1 : syscall(SYS_pwrite64, descriptor, bytes, (size_t)part, at);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t at) {
  return pwrite64(descriptor, bytes, size, at);
}
ssize_t writev(int descriptor, const struct iovec* parts, int number) {
  size_t size = 0;
  for (int i = 0; i < number; ++i) size += parts[i].iov_len;
  const ssize_t part = allowed(descriptor, size);
  if (part < 0) return -1;
  if ((size_t)part == size) return syscall(SYS_writev, descriptor, parts, number);
  size_t done = 0, left = (size_t)part;
  for (int i = 0; i < number && left > 0; ++i) {
    const size_t here = parts[i].iov_len < left ? parts[i].iov_len : left;
    const ssize_t written = syscall(SYS_write, descriptor, parts[i].iov_base, here);
    if (written < 0) return done > 0 ? (ssize_t)done : -1;
    done += (size_t)written;
    left -= (size_t)written;
  }
  return (ssize_t)done;
}
int ftruncate(int descriptor, off_t size) {
  FAIL_ON(TRUNCATE, descriptor);
  return (int)syscall(SYS_ftruncate, descriptor, size);
}
int ftruncate64(int descriptor, off64_t size) { return ftruncate(descriptor, size); }
int fsync(int descriptor) {
  FAIL_ON(FSYNC, descriptor);
  return (int)syscall(SYS_fsync, descriptor);
}
int fdatasync(int descriptor) {
  FAIL_ON(FSYNC, descriptor);
  return (int)syscall(SYS_fdatasync, descriptor);
}
int flock(int descriptor, int operation) {
  FAIL_ON(LOCK, descriptor);
  return (int)syscall(SYS_flock, descriptor, operation);
}

// ------------------------------------------------------------------------------------------------- names

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  FAIL_AT(RENAME, to_at, to);
  return (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}
int renameat(int from_at, const char* from, int to_at, const char* to) {
  return renameat2(from_at, from, to_at, to, 0);
}
int rename(const char* from, const char* to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int mkdirat(int at, const char* name, mode_t mode) {
  FAIL_AT(MKDIR, at, name);
  return (int)syscall(SYS_mkdirat, at, name, mode);
}
int mkdir(const char* name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int unlinkat(int at, const char* name, int flags) {
  FAIL_AT(UNLINK, at, name);
  return (int)syscall(SYS_unlinkat, at, name, flags);
}
int unlink(const char* name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char* name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char* name) {
  struct stat facts;
  return lstat(name, &facts) == 0 && S_ISDIR(facts.st_mode) ? rmdir(name) : unlink(name);
}
int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  FAIL_AT(LINK, to_at, to);
  return (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlink(const char* target, const char* name) {
  FAIL_AT(LINK, AT_FDCWD, name);
  return (int)syscall(SYS_symlinkat, target, AT_FDCWD, name);
}

// ------------------------------------------------------------------------------------------------- memory

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static int no_memory(size_t size) {
  return size >= LARGE && inside_main && count(MEMORY, "") != 0 ? (errno = ENOMEM) : 0;
}
void* malloc(size_t size) { return no_memory(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t number, size_t size) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(number, size, &bytes)) bytes = 0;  // the real one fails
  return no_memory(bytes) ? NULL : __libc_calloc(number, size);
}
void* realloc(void* old, size_t size) { return no_memory(size) ? NULL : __libc_realloc(old, size); }
void* memalign(size_t alignment, size_t size) { return no_memory(size) ? NULL : __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  const int before = errno;
  void* const made = memalign(alignment, size);
  errno = before;
  if (made == NULL) return ENOMEM;
  *result = made;
  return 0;
}

// ------------------------------------------------------------------------------------------------- start

// glibc's streams write by a function that cannot be replaced. A stream to a file under the folder (the log of a run of
// `compare`) gets another one.
static ssize_t write_to(void* descriptor, const char* bytes, size_t size) {
  size_t done = 0;
  while (done < size) {  // as glibc's own function does
    const ssize_t written = write((int)(intptr_t)descriptor, bytes + done, size - done);
    if (written < 0) break;
    done += (size_t)written;
  }
  return (ssize_t)done;
}
static FILE* hooked_stream(FILE* stream, int descriptor, int buffering) {
  char path[PATH_MAX];
  if (!path_of(descriptor, path)) return stream;
  const cookie_io_functions_t functions = {NULL, write_to, NULL, NULL};
  FILE* const hooked = fopencookie((void*)(intptr_t)descriptor, "w", functions);
  if (hooked == NULL) return stream;
  setvbuf(hooked, NULL, buffering, BUFSIZ);
  return hooked;
}

static int number(const char* name) {
  const char* const text = getenv(name);
  return text == NULL ? 0 : atoi(text);
}

__attribute__((constructor)) static void set_up(void) {
  const char *const folder = getenv("FAULTS_ROOT"), *const shared = getenv("FAULTS_STATE"),
                    *const log = getenv("FAULTS_LOG");
  const char* const kind = getenv("FAULTS_KIND");
  if (folder == NULL || shared == NULL || strlen(folder) >= sizeof root) return;
  strcpy(root, folder);
  root_length = strlen(root);
  plan_nth = (uint64_t)number("FAULTS_NTH");
  plan_error = number("FAULTS_ERROR");
  for (int k = 0; k < KINDS; ++k) {
    if (kind != NULL && strcmp(kind, kind_names[k]) == 0) plan_kind = k;
  }
  if (log != NULL)
    log_descriptor = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const int descriptor = (int)syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return;
  void* const mapped = mmap(NULL, sizeof(struct State), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  syscall(SYS_close, descriptor);
  if (mapped == MAP_FAILED) return;
  state = mapped;
  stdout = hooked_stream(stdout, STDOUT_FILENO, _IOFBF);
  stderr = hooked_stream(stderr, STDERR_FILENO, _IONBF);
}

static int (*real_main)(int, char**, char**);
static int watched_main(int argc, char** argv, char** environment) {
  inside_main = 1;
  const int code = real_main(argc, argv, environment);
  inside_main = 0;
  return code;
}
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void* stack) {
  typedef int Start(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void), void (*)(void), void*);
  Start* const start = (Start*)(uintptr_t)dlsym(RTLD_NEXT, "__libc_start_main");
  real_main = main;
  return start(watched_main, argc, argv, init, fini, end, stack);
}
