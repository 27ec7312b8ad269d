// Usage: journal, reports and thresholds. What the rest of the service may import.
export { failureKind } from './failures.ts'
export type { UsageFinish, UsageKind, UsageRecord, UsageRow } from './journal.ts'
export type { Usage } from './service.ts'
