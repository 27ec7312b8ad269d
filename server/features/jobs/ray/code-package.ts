import path from 'node:path'
import { root } from '../../../../lib/root.ts'
import { type CodePackage, packFolders } from '../../../platform/ray/package.ts'

/** The trainer's code and the converters: each run gets the version of the service that started it. */
export const packTrainer = (converters: string): Promise<CodePackage> =>
  packFolders([
    { folder: path.join(root, 'trainer'), patterns: ['**/*.py'], exclude: ['tests/**'], to: 'trainer' },
    { folder: converters, patterns: ['**/*.py'], to: 'converters' },
  ])
