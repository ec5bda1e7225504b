//! The source of the kernels, in the order in which it is compiled.

/// Files of `kernels/`, by name.
pub const FILES: [(&str, &str); 11] = [
    ("prelude.cuh", include_str!("kernels/prelude.cuh")),
    ("elementwise.cu", include_str!("kernels/elementwise.cu")),
    ("norm.cu", include_str!("kernels/norm.cu")),
    ("table.cu", include_str!("kernels/table.cu")),
    ("loss.cu", include_str!("kernels/loss.cu")),
    ("experts.cu", include_str!("kernels/experts.cu")),
    ("latent.cu", include_str!("kernels/latent.cu")),
    ("optimizer.cu", include_str!("kernels/optimizer.cu")),
    ("attention.cu", include_str!("kernels/attention.cu")),
    ("attention_tensor.cu", include_str!("kernels/attention_tensor.cu")),
    ("attention_groups.cu", include_str!("kernels/attention_groups.cu")),
];

/// All of it as one text; messages of the compiler name the file and its line.
pub fn for_gpu() -> String {
    FILES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
}

/// The same for the host's C++ compiler.
pub fn for_host() -> String {
    let before = |name: &str| match name {
        "prelude.cuh" => include_str!("kernels/host.h"),
        "attention_tensor.cu" => include_str!("kernels/host_tensor.h"),
        _ => "",
    };
    let files: String =
        FILES.iter().map(|(name, text)| format!("{}\n#line 1 \"{name}\"\n{text}\n", before(name))).collect();
    files + include_str!("kernels/host_launch.h")
}
