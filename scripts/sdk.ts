// Packs the client library into a folder: `scripts/node scripts/sdk.ts FOLDER`.
import path from 'node:path'
import { pack } from './pack.ts'

await pack({
  folder: 'sdk',
  target: path.resolve(process.argv[2] ?? '.'),
  build: { entry: ['index.ts'], platform: 'neutral', target: 'es2022', dts: true },
})
