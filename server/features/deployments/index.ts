// Deployments: names that clients call. What the rest of the service may import.
export type { Deployments } from './service.ts'
