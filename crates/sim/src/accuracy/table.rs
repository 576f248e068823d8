/// Fingerprint of the constants that these errors belong to; see [`crate::constants::fingerprint`].
pub const FINGERPRINT: u64 = 0x2f226ea90c7dc699;

/// Rows: all machines, then [`Class::ALL`]. Columns: [`BANDS`].
const LEFT_OUT: [[Summary; 4]; 6] = [
    [of(80, 0.156, 0.507), of(77, 0.171, 0.510), of(98, 0.118, 0.306), of(196, 0.032, 0.142)],
    [of(15, 0.085, 0.217), of(15, 0.073, 0.183), of(20, 0.112, 0.260), of(55, 0.025, 0.086)],
    [of(9, 0.099, 0.220), of(8, 0.077, 0.208), of(10, 0.067, 0.410), of(23, 0.034, 0.179)],
    [of(24, 0.176, 0.313), of(20, 0.106, 0.323), of(32, 0.076, 0.231), of(81, 0.030, 0.135)],
    [of(25, 0.215, 0.600), of(26, 0.380, 0.905), of(26, 0.175, 0.484), of(26, 0.105, 0.224)],
    [of(7, 0.186, 0.261), of(8, 0.202, 0.296), of(10, 0.176, 0.328), of(11, 0.137, 0.461)],
];
