export type { Files, NewFile } from './service.ts'
