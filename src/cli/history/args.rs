//! The options of `history`.

use clap::Args;

#[derive(Debug, Default, Args)]
pub struct HistoryOptions {
    /// Start of the period [default: 24 hours before its end; with --job: the first event that is kept]
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// End of the period [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Name of the pool [default: all pools]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Number or URL of one job
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Full path of the project; `*` stands for any characters but `/`, `**` for any
    #[arg(long, value_name = "PATH")]
    pub project: Option<String>,
    /// Show only the last N jobs
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
