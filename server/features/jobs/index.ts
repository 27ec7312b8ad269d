// Fine-tuning jobs from creation to outcome. What the rest of the service may import.
export type { Jobs } from './service.ts'
