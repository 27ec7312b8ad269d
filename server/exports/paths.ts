import path from 'node:path'

/** Where all exports of the service lie. */
export const exportsDir = (dataDir: string) => path.join(dataDir, 'exports')

/** The folder of one that is ready: its files and nothing else. */
export const exportDir = (dataDir: string, id: string) => path.join(exportsDir(dataDir), id)

/** Where one is made; what is in it is nobody's yet. */
export const makingDir = (dataDir: string, id: string) => `${exportDir(dataDir, id)}.part`
