#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| berth_fuzz::run("kubeconfig", bytes));
