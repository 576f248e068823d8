//! The collectives that profilers name, and the bytes of the elements they move.
//!
//! PyTorch's names are those of `ProcessGroupNCCL` (`allreduce`, `_allgather_base`, `reduce_scatter_tensor_coalesced`), and the names of
//! kernels those of NCCL since 2.7 and of RCCL: `ncclAllReduceRingLLKernel_sum_f32`, `ncclKernel_AllReduce_RING_LL_Sum_float`,
//! `ncclDevKernel_AllReduce_Sum_f32_RING_LL`. The algorithm and the protocol in the name of a kernel are not read: NCCL launches one kernel
//! for several of them.

use weftlink_plan::Kind;

/// Parts of names, without `_`, `-` and capitals. A name that contains several means the first of them.
const PARTS: [(&str, Kind); 12] = [
    ("allreduce", Kind::AllReduce),
    ("reducescatter", Kind::ReduceScatter),
    ("allgather", Kind::AllGather),
    ("alltoall", Kind::AllToAll),
    ("all2all", Kind::AllToAll),
    ("broadcast", Kind::Broadcast),
    ("bcast", Kind::Broadcast),
    ("barrier", Kind::Barrier),
    ("reduce", Kind::Reduce),
    ("gather", Kind::Gather),
    ("scatter", Kind::Scatter),
    ("send", Kind::SendReceive),
];

/// Names are compared up to this length: those of kernels have template arguments of any length.
const NAME_MAX: usize = 96;

/// The collective that a profiler's name for a call means.
pub fn named(name: &str) -> Option<Kind> {
    let plain: String = name
        .chars()
        .take(NAME_MAX)
        .take_while(|c| !matches!(c, '(' | '<' | '['))
        .filter(|c| !matches!(c, '_' | '-' | ':'))
        .map(|c| c.to_ascii_lowercase())
        .collect();
    let found = PARTS.iter().find(|(part, _)| plain.contains(part)).map(|(_, kind)| *kind);
    found.or_else(|| (plain == "recv").then_some(Kind::SendReceive))
}

/// What a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// It communicates; the collective, if its name says one. `ncclDevKernel_Generic` of RCCL runs any.
    Communication(Option<Kind>),
    /// It does something else.
    Other,
}

/// Starts of the names of kernels that communicate: NCCL's, NCCL's on symmetric memory, RCCL's, and the all-reduces of vLLM and
/// PyTorch's symmetric memory.
const COMMUNICATION: [&str; 7] = [
    "nccl",
    "rccl",
    "msccl",
    "cross_device_reduce",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "multimem_all_reduce",
];

/// What a kernel of this name is.
pub fn kernel(name: &str) -> Kernel {
    // The name of a template begins with its return type, and a namespace may follow.
    let name = name.strip_prefix("void ").unwrap_or(name);
    let short = name.split(['(', '<']).next().unwrap_or(name);
    let short = short.rsplit("::").next().unwrap_or(short);
    let starts_with =
        |start: &&str| short.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
    if !COMMUNICATION.iter().any(starts_with) {
        return Kernel::Other;
    }
    let all_reduce = starts_with(&"cross_device_reduce").then_some(Kind::AllReduce);
    Kernel::Communication(all_reduce.or_else(|| named(short)))
}

/// The bytes of an element of a PyTorch type (`Float`, `c10::BFloat16`) or of one of NCCL or Weft (`float32`, `f32`, `bf16`).
pub fn element_bytes(data_type: &str) -> Option<u64> {
    let short = data_type.rsplit("::").next().unwrap_or(data_type);
    let plain: String =
        short.chars().take(32).filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
    Some(match plain.as_str() {
        "byte" | "char" | "bool" | "int8" | "uint8" | "i8" | "u8" | "qint8" | "quint8" => 1,
        "float8e5m2" | "float8e4m3fn" | "float8e5m2fnuz" | "float8e4m3fnuz" | "float8e8m0fnu" => 1,
        "short" | "half" | "bfloat16" | "float16" | "int16" | "uint16" | "f16" | "bf16" | "i16" | "u16" => 2,
        "int" | "float" | "int32" | "uint32" | "float32" | "f32" | "i32" | "u32" | "complexhalf" => 4,
        "long" | "double" | "int64" | "uint64" | "float64" | "f64" | "i64" | "u64" | "complexfloat" => 8,
        "complexdouble" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_calls_are_collectives() {
        for (name, kind) in [
            ("allreduce", Kind::AllReduce),
            ("allreduce_coalesced", Kind::AllReduce),
            ("_allgather_base", Kind::AllGather),
            ("all_gather_into_tensor_coalesced", Kind::AllGather),
            ("_reduce_scatter_base", Kind::ReduceScatter),
            ("all_to_allv", Kind::AllToAll),
            ("alltoall_base", Kind::AllToAll),
            ("broadcast", Kind::Broadcast),
            ("_reduce_oop", Kind::Reduce),
            ("send", Kind::SendReceive),
            ("recv", Kind::SendReceive),
            ("barrier", Kind::Barrier),
        ] {
            assert_eq!(named(name), Some(kind), "{name}");
        }
        for name in ["wait", "init", "end", "", "é", "ncclDevKernel_Generic"] {
            assert_eq!(named(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_kernels_of_all_versions_are_known() {
        let all_reduce = Kernel::Communication(Some(Kind::AllReduce));
        for name in [
            "ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)",
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs)",
            "void cross_device_reduce_1stage<float, 8>(RankData*, RankSignals)",
            "void vllm::cross_device_reduce_2stage<half, 4>(RankData*)",
        ] {
            assert_eq!(kernel(name), all_reduce, "{name}");
        }
        assert_eq!(kernel("ncclDevKernel_Generic_1(ncclDevComm*)"), Kernel::Communication(None));
        assert_eq!(
            kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
            Kernel::Communication(Some(Kind::SendReceive))
        );
        for name in [
            "void at::native::reduce_kernel<512, 1>(float)",
            "ampere_sgemm_128x64_nn",
            "void splitKreduce_kernel<int>(ncclThing)",
            "",
            "::",
            "é",
        ] {
            assert_eq!(kernel(name), Kernel::Other, "{name}");
        }
    }

    #[test]
    fn elements_have_the_bytes_of_their_type() {
        for (name, bytes) in [
            ("Float", 4),
            ("c10::BFloat16", 2),
            ("Float8_e4m3fn", 1),
            ("Long", 8),
            ("bf16", 2),
            ("ComplexDouble", 16),
        ] {
            assert_eq!(element_bytes(name), Some(bytes), "{name}");
        }
        assert_eq!(element_bytes("Undefined"), None);
    }
}
