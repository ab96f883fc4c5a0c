//! The `ringleader` command.

fn main() -> std::process::ExitCode {
    ringleader::cli::main()
}
