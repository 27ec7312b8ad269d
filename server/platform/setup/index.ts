// Set-up for training, behind the server's start. What the rest of the service may import.
export { setupRoutes } from './routes.ts'
export { TrainingSetup } from './service.ts'
