// `npm run docs`: generates docs/reference from the schemas that the service validates with. `--check` writes nothing
// and fails if a page is out of date.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { referencePages } from './docs/pages.ts'

const folder = path.resolve(import.meta.dirname, '../docs/reference')
const check = process.argv.includes('--check')
const stale: string[] = []
for (const [name, text] of Object.entries(referencePages())) {
  const file = path.join(folder, name)
  if (existsSync(file) && readFileSync(file, 'utf8') === text) continue
  if (check) stale.push(`docs/reference/${name}`)
  else {
    mkdirSync(folder, { recursive: true })
    writeFileSync(file, text)
    console.log(`wrote docs/reference/${name}`)
  }
}
if (stale.length > 0) {
  console.error(`Out of date: ${stale.join(', ')}. Run 'npm run docs'.`)
  process.exit(1)
}
