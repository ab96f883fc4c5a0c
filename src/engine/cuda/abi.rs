//! Made from `kernels/abi.h`; change that, then run
//! `RINGLEADER_UPDATE_ABI=1 cargo test --test abi`. The module's declaration says which lints it is spared.

pub const RL_THREADS: u32 = 512;
pub const RL_BLOCK: u32 = 576;
pub const RL_MAX_RANKS: u32 = 16;
pub const RL_MAX_CHUNKS: u32 = 128;
pub const RL_MAX_WORKERS: u32 = 32;
pub const RL_MAX_WORDS: u32 = 1280;
pub const RL_MAX_ENDS: u32 = 32;
pub const RL_MAX_OPERANDS: u32 = 32;
pub const RL_LINE: u32 = 128;
pub const RL_SLOT_BITS: u32 = 22;
pub const RL_REGION_LINKS: u32 = 256;
pub const RL_REGION_CREDITS: u32 = 128;
pub const RL_REGION_TAILS: u32 = 32896;
pub const RL_REGION_BOXES: u32 = 65664;
pub const RL_EXCHANGE_THREADS: u32 = 512;
pub const RL_EXCHANGE_BLOCK: u32 = 544;
pub const RL_BOX16_BYTES: u32 = 131072;
pub const RL_LINE_DATA: u32 = 120;
pub const RL_FAULT_NONE: u32 = 0;
pub const RL_FAULT_MISMATCH: u32 = 1;
pub const RL_END_PRODUCES: u32 = 32768;
pub const RL_FOLD_FINISH: u32 = 1024;
pub const RL_FOLD_DEFER: u32 = 2048;
pub const RL_KIND_INPUT: u32 = 0;
pub const RL_KIND_OUTPUT: u32 = 1;
pub const RL_KIND_LINK: u32 = 2;
pub const RL_KIND_PEER: u32 = 3;
pub const RL_OP_LENT: u32 = 1;
pub const RL_OP_SCALE: u32 = 2;
pub const RL_OP_DIVIDE: u32 = 4;
pub const RL_OP_EARLY: u32 = 8;
pub const RL_EXCHANGE_BLOCKS: u32 = 16;
pub const RL_EXCHANGE_GATHER: u32 = 32;
pub const RL_EXCHANGE_COPY: u32 = 64;
pub const RL_EXCHANGE_SILENT: u32 = 128;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct rl_header {
    pub ticket: u64,
    pub output: u64,
    pub call: [u64; 2usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct rl_peer {
    pub local: u64,
    pub remote: u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct rl_state {
    pub epoch: u64,
    pub packet_epoch: u64,
    pub blocks: u32,
    pub failed: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct rl_report {
    pub epoch: u64,
    pub call: [u64; 2usize],
    pub peer_call: [u64; 2usize],
    pub peer: u32,
    pub fault: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct rl_op {
    pub input: u64,
    pub output: u64,
    pub state: u64,
    pub abort_word: u64,
    pub report: u64,
    pub call: [u64; 2usize],
    pub scale: u64,
    pub rank: u32,
    pub ranks: u32,
    pub workers: u32,
    pub lanes: u32,
    pub tile: u32,
    pub slot: u32,
    pub depth: u32,
    pub depth_lent: u32,
    pub flags: u32,
    pub digest: u32,
    pub fifo: u64,
    pub peers: [rl_peer; 16usize],
    pub bounds: [u64; 129usize],
    pub first_word: [u16; 32usize],
    pub words: [u16; 1280usize],
}
impl Default for rl_op {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct rl_exchange {
    pub input: u64,
    pub output: u64,
    pub state: u64,
    pub abort_word: u64,
    pub report: u64,
    pub call: [u64; 2usize],
    pub scale: u64,
    pub count: u64,
    pub box_: u64,
    pub box_size: u64,
    pub boxes16: u64,
    pub rank: u32,
    pub ranks: u32,
    pub flags: u32,
    pub digest: u32,
    pub sends: u32,
    pub receives: u32,
    pub peers: [rl_peer; 16usize],
}
