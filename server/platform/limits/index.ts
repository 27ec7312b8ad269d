// Rate limits, the daily quota and concurrency of an account. What the rest of the service may import.
export type { CountListener } from './daily-quota.ts'
export { Limits } from './service.ts'
