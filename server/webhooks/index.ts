// Webhooks: registration, signing and delivery. What the rest of the service may import.
export { readAllowed } from './addresses.ts'
export { createWebhooks, type Webhooks } from './service.ts'
