// Answers that accounts keep. What the rest of the service may import.
export type { StoredCompletions } from './service.ts'
