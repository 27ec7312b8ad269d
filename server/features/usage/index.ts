// Usage: journal, reports and thresholds. What the rest of the service may import.
export { failureKind } from './failures.ts'
export { requestTokensMax, type UsageFinish, type UsageKind, type UsageRecord, type UsageRow } from './journal.ts'
export type { Usage } from './service.ts'
