//! Every format is written into a temporary folder and read back; the rules of splits, fractions and classes are tested
//! on class folders.

mod dataset {
    mod binary;
    mod folders;
    mod hostile;
    mod images;
    mod manifest;
    mod parquet;
    #[cfg(unix)]
    mod special;
    mod splits;
    mod tar;
}
