//! x
/// x
#[derive(Debug)]
pub struct ChatTemplate;
/// x
#[derive(Debug)]
pub struct Conversation;
