import { rm } from 'node:fs/promises'
import path from 'node:path'

/** Where all exports of the service lie. */
export const exportsDir = (dataDir: string) => path.join(dataDir, 'exports')

/** The folder of one that is ready: its files and nothing else. */
export const exportDir = (dataDir: string, id: string) => path.join(exportsDir(dataDir), id)

/** Where one is made; what is in it is nobody's yet. */
export const makingDir = (dataDir: string, id: string) => `${exportDir(dataDir, id)}.part`

/** Removes a folder and all in it. A program that was stopped just now, or whose server was, may write for a moment still: what it adds goes with the next try. */
export const removeDir = (folder: string) => rm(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
