// Usage: journal, reports and thresholds. What the rest of the service may import.
export type { UsageFinish, UsageKind, UsageRecord, UsageRow } from './journal.ts'
export type { Usage } from './service.ts'
