// The dashboard in a browser: fast, under its policy, for every eye and hand.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { browserService, browserTest, desktop, phone, problemsOf, settled } from './support.ts'

const { service } = browserService('shell')

const paths = [
  '/',
  '/datasets',
  '/jobs',
  '/jobs/new',
  '/playground',
  '/evaluations',
  '/models',
  '/deployments',
  '/exports',
  '/settings/profile',
  '/nowhere/at/all',
]

test(
  'axe finds nothing serious, light on a phone and dark; no page is wider than its window',
  browserTest,
  async (t) => {
    for (const options of [
      { scheme: 'dark', size: desktop },
      { scheme: 'light', size: phone },
    ] as const) {
      const { page, complaints } = await service.visit({ ...options, reducedMotion: true })
      for (const path of paths) {
        await page.goto(path)
        await settled(page)
        assert.deepEqual(await problemsOf(page), [], `${path} ${options.scheme} ${options.size.width}`)
        const width = await page.evaluate(() => document.documentElement.scrollWidth)
        assert.ok(width <= options.size.width, `${path} is ${width} px wide`)
      }
      assert.deepEqual(complaints, [], options.scheme)
      t.diagnostic(`${paths.length} pages, ${options.scheme}, ${options.size.width} px`)
    }
  },
)

test('the keyboard reaches every control, and the first is a way past the navigation', browserTest, async () => {
  const { page } = await service.visit()
  await page.goto('/')
  await settled(page)
  const reached: string[] = []
  const controls = await page.evaluate(
    () => document.querySelectorAll('a[href]:not([tabindex="-1"]), button:not([tabindex="-1"])').length,
  )
  for (let presses = 0; presses < controls + 20; presses++) {
    await page.keyboard.press('Tab')
    const at = await page.evaluate(() => {
      const { activeElement } = document
      if (!activeElement || activeElement === document.body) return undefined
      const { outlineStyle } = getComputedStyle(activeElement)
      return { name: activeElement.textContent || activeElement.getAttribute('aria-label') || '', outlineStyle }
    })
    if (!at) break
    assert.notEqual(at.outlineStyle, 'none', `${at.name} shows no focus`)
    reached.push(at.name)
  }
  assert.equal(reached[0], 'Skip to the page')
  for (const name of ['Home', 'Datasets', 'Settings', 'API reference', 'New job'])
    assert.ok(reached.includes(name), `${name} in ${reached.join(', ')}`)
  await page.goto('/')
  await settled(page)
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await page.keyboard.press('Tab')
  assert.equal(await page.evaluate(() => document.activeElement?.closest('main') !== null), true)
})

test('a theme that was chosen is there before the first pixel, and after a reload', browserTest, async () => {
  const { page } = await service.visit({ scheme: 'light' })
  await page.goto('/')
  await settled(page)
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor)
  const light = await ground()
  await page.getByRole('button', { name: /Owner/ }).click()
  await page.getByRole('menuitemradio', { name: 'Dark' }).click()
  const dark = await ground()
  assert.notEqual(dark, light)
  // Before the app runs, which waits for its script.
  await page.route('**/assets/*.js', (route) => setTimeout(() => void route.continue(), 300))
  await page.reload({ waitUntil: 'commit' })
  await page.waitForFunction(() => document.body !== null)
  assert.equal(await ground(), dark)
})

test('on a phone the navigation is a drawer that gives the focus back', browserTest, async () => {
  const { page } = await service.visit({ size: phone })
  await page.goto('/')
  await settled(page)
  await page.getByRole('button', { name: 'Menu' }).click()
  assert.deepEqual(await problemsOf(page), [])
  await page.getByRole('dialog').getByRole('link', { name: 'Datasets' }).click()
  await page.getByRole('heading', { level: 1, name: 'Datasets' }).waitFor()
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  await page.getByRole('button', { name: 'Menu' }).click()
  await page.keyboard.press('Escape')
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  await page.waitForFunction(() => document.activeElement?.getAttribute('aria-label') === 'Menu')
})

test('a service that goes away is said, and all is well again when it is back', browserTest, async () => {
  const { page } = await service.visit()
  await page.goto('/')
  await settled(page)
  const gone = page.getByText('The service does not answer')
  await page.route('**/{v1,health}/**', (route) => route.abort('connectionrefused'))
  await gone.waitFor()
  assert.ok(await page.getByRole('heading', { level: 1, name: 'Home' }).isVisible(), 'the page stays')
  await page.unroute('**/{v1,health}/**')
  await gone.waitFor({ state: 'detached' })
})

test('a page whose file is gone, as after an update, is reloaded, and otherwise says so', browserTest, async () => {
  const { page } = await service.visit()
  await page.goto('/')
  await settled(page)
  let asked = 0
  const file = /\/assets\/datasets-[^/]*\.js$/
  await page.route(file, (route) => {
    asked++
    return route.fulfill({ status: 404, contentType: 'application/json', body: '{}' })
  })
  await page.getByRole('link', { name: 'Datasets' }).click()
  await page.getByText('This page could not be loaded').waitFor()
  await page.waitForFunction(
    () => performance.getEntriesByType('navigation')[0]!.entryType && document.readyState === 'complete',
  )
  assert.ok(await page.getByRole('navigation', { name: 'Main' }).isVisible(), 'the rest of the dashboard goes on')
  assert.ok(asked >= 2, 'it was reloaded once')
  await page.unroute(file)
  await page.getByRole('button', { name: 'Try again' }).click()
  await page.getByRole('heading', { level: 1, name: 'Datasets' }).waitFor()
})
