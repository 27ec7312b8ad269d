// Fine-tuning jobs, and the devices that trainings hold. What the rest of the service may import.
export type { Devices, Place } from './devices/index.ts'
