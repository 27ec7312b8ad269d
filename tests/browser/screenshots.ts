// Pictures of every page: light, dark and on a phone. `npm run screenshots -- FOLDER [PATH…]`
import { mkdirSync } from 'node:fs'
import path from 'node:path'
import { furnish, furnishable } from './furnish.ts'
import { desktop, phone, settled, startBrowserService } from './support.ts'

const [folder = '.local/screenshots', ...only] = process.argv.slice(2)
const kinds = [
  { name: 'light', scheme: 'light', size: desktop },
  { name: 'dark', scheme: 'dark', size: desktop },
  { name: 'phone', scheme: 'light', size: phone },
] as const

mkdirSync(folder, { recursive: true })
const service = await startBrowserService('screenshots', furnishable)
try {
  const { pages: everyPage, invitation, share } = await furnish(service)
  const pages =
    only.length > 0
      ? Object.fromEntries(only.map((each) => [each.replace(/^\//, '').replaceAll('/', '-') || 'home', each]))
      : everyPage
  for (const { name: kind, scheme, size } of kinds) {
    const { page, complaints } = await service.visit({ scheme, size })
    for (const [name, address] of Object.entries(pages)) {
      await page.goto(address)
      await settled(page)
      await page.screenshot({ path: path.join(folder, `${name}-${kind}.png`), fullPage: kind === 'phone' })
    }
    if (complaints.length > 0) console.log(complaints.join('\n'))
    if (only.length > 0) continue
    const visitor = await service.visit({ scheme, size, signedIn: false })
    for (const [name, address] of Object.entries({ 'sign-in': '/sign-in', invitation, share })) {
      await visitor.page.goto(address)
      await settled(visitor.page)
      await visitor.page.screenshot({ path: path.join(folder, `${name}-${kind}.png`), fullPage: kind === 'phone' })
    }
  }
} finally {
  await service.stop()
}
