"""Who asks, and what they may: principals, tokens, certificates, the policy, the audit log."""
