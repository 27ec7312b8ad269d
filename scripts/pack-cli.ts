// Packs the command line into a folder: `scripts/node scripts/pack-cli.ts FOLDER`. The package needs no other.
import path from 'node:path'
import { pack } from './pack.ts'

await pack({
  folder: 'cli',
  target: path.resolve(process.argv[2] ?? '.'),
  build: {
    entry: { tunery: 'packaged.ts' },
    platform: 'node',
    target: 'node22.12',
    dts: false,
    minify: true,
    // All of it is in the package.
    deps: { alwaysBundle: [/.*/] },
  },
})
