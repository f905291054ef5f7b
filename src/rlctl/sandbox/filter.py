"""The seccomp filter of a sandboxed call: no network, no new processes, no signals to others, no wider limits.

Classic BPF over `struct seccomp_data {nr u32, arch u32, ip u64, args u64[6]}` (linux/seccomp.h). A denied call fails
with EPERM, so the function sees an ordinary PermissionError. Threads (clone with CLONE_THREAD) stay possible.
"""

import struct
from dataclasses import dataclass

CLONE_THREAD = 0x10000
EPERM, ENOSYS = 1, 38
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_JMP|JSET|K, BPF_RET|K."""
NR, ARCH, ARGS = 0, 4, 16
EVERYWHERE = (*range(424, 436), 438, 442, 452)
"""Same numbers on all machines: pidfd_send_signal, io_uring_*, mount calls, pidfd_open, clone3, pidfd_getfd, ..."""


@dataclass(frozen=True)
class Machine:
    """System call numbers of one architecture (asm/unistd.h)."""

    audit: int
    clone: int
    tgkill: int
    prlimit: int
    denied: tuple[int, ...]
    below: int = 1 << 31
    """Numbers from here on are another ABI."""


MACHINES = {
    "x86_64": Machine(
        audit=0xC000003E, clone=56, tgkill=234, prlimit=302, below=0x40000000,
        denied=(
            *(41, 42, 43, 44, 46, 49, 50, 53, 288, 307),  # socket connect accept sendto sendmsg bind listen pair
            *(57, 58, 59, 322, 62, 200, 101, 129, 297, 310, 311),  # fork vfork exec kill tkill ptrace process_vm
            *(155, 161, 165, 166, 272, 308),  # pivot_root chroot mount umount unshare setns
            *(29, 64, 68, 240, 319),  # shmget semget msgget mq_open memfd_create
            *(90, 91, 92, 93, 94, 260, 268, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),  # modes, owners, xattr
            *(160, 159, 164, 227, 305, 167, 168, 169, 170, 171, 172, 173, 175, 176, 246, 313, 320),  # setrlimit, system
            *(248, 249, 250, 298, 321, 323),  # keys perf bpf userfaultfd
        ),
    ),
    "aarch64": Machine(
        audit=0xC00000B7, clone=220, tgkill=131, prlimit=261,
        denied=(
            *(198, 199, 200, 201, 202, 203, 206, 211, 242, 269),
            *(221, 281, 129, 130, 117, 138, 240, 270, 271),
            *(39, 40, 41, 51, 97, 268),
            *(180, 186, 190, 194, 279),
            *(52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16),
            *(164, 104, 105, 106, 112, 142, 161, 162, 170, 171, 224, 225, 266, 273, 294),
            *(217, 218, 219, 241, 280, 282),
        ),
    ),
}  # fmt: skip


def program(machine: Machine, pid: int) -> bytes:
    """The filter for process `pid` as an array of `struct sock_filter {code u16, jt u8, jf u8, k u32}`."""
    allow, deny = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)
    code = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NR)]
    code += [(AT_LEAST, 0, 1, machine.below), (RETURN, 0, 0, KILL)]
    code += [(EQUAL, 0, 1, 435), (RETURN, 0, 0, ERRNO | ENOSYS)]  # clone3: its flags cannot be read; libc falls back
    code += [(EQUAL, 0, 4, machine.clone), (LOAD, 0, 0, ARGS), (ANY_BIT, 0, 1, CLONE_THREAD), allow, deny]
    code += [(EQUAL, 0, 4, machine.tgkill), (LOAD, 0, 0, ARGS), (EQUAL, 0, 1, pid), allow, deny]
    code += [(EQUAL, 0, 6, machine.prlimit), (LOAD, 0, 0, ARGS + 16), (EQUAL, 0, 3, 0)]  # reading limits is allowed
    code += [(LOAD, 0, 0, ARGS + 20), (EQUAL, 0, 1, 0), allow, deny]
    for number in (*machine.denied, *EVERYWHERE):
        code += [(EQUAL, 0, 1, number), deny]
    return b"".join(struct.pack("<HBBI", *one) for one in [*code, allow])
