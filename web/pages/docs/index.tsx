// The frame of the docs: navigation and search, for everyone, signed in or not.

import { Link, Outlet } from '@tanstack/react-router'
import { ArrowLeft, Monitor, Moon, Search, Sun } from 'lucide-react'
import { useEffect, useState } from 'react'
import { isSearchKey } from '../../lib/keys.ts'
import { setTheme, type Theme, useTheme } from '../../lib/theme.ts'
import { Announcer, SkipLink } from '../../ui/announcer.tsx'
import { Brand } from '../../ui/brand.tsx'
import { IconButton, LinkButton } from '../../ui/button.tsx'
import { NavigationDrawer } from '../../ui/drawer.tsx'
import { Menu, MenuChoices } from '../../ui/popups.tsx'

import { Navigation } from './navigation.tsx'
import { DocsSearch } from './search.tsx'

export default function Docs() {
  const [searching, setSearching] = useState(false)
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const { target } = event
      const typing =
        target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA)$/.test(target.tagName))
      const asked = event.key === '/' ? !typing && !event.ctrlKey && !event.metaKey : isSearchKey(event)
      if (!asked) return
      event.preventDefault()
      setSearching(true)
    }
    addEventListener('keydown', onKey)
    return () => removeEventListener('keydown', onKey)
  }, [])
  return (
    <>
      <SkipLink />
      <Announcer />
      <header className="sticky top-0 z-30 flex h-13 items-center gap-2 border-b border-line bg-surface px-2 lg:px-4">
        <Drawer />
        <Link to="/docs/$" params={{ _splat: 'overview' }} className="flex items-center gap-2 rounded-md">
          <Brand />
          <span className="text-lg text-muted">docs</span>
        </Link>
        <div className="flex flex-1 justify-end lg:justify-center">
          <button
            type="button"
            onClick={() => setSearching(true)}
            className={
              'flex h-8.5 items-center gap-2 rounded-md px-2.5 text-muted hover:text-ink any-pointer-coarse:h-10 ' +
              'sm:w-72 sm:bg-canvas sm:ring-1 sm:ring-edge/60 sm:ring-inset'
            }
          >
            <Search aria-hidden className="size-4 shrink-0" />
            <span className="flex-1 text-left max-sm:sr-only">Search</span>
            <kbd aria-hidden className="rounded-sm border border-line px-1.5 font-mono text-xs max-sm:hidden">
              /
            </kbd>
          </button>
        </div>
        <ThemeMenu />
        <LinkButton to="/" variant="quiet" icon={<ArrowLeft aria-hidden />} className="max-sm:hidden">
          Dashboard
        </LinkButton>
      </header>
      <div className="mx-auto flex max-w-[96rem]">
        <aside
          className={
            'sticky top-13 h-[calc(100dvh-3.25rem)] w-62 shrink-0 overflow-y-auto border-r border-line ' +
            'max-lg:hidden'
          }
        >
          <Navigation />
        </aside>
        <main id="main" tabIndex={-1} className="min-w-0 flex-1 outline-none">
          <Outlet />
        </main>
      </div>
      <DocsSearch open={searching} onOpenChange={setSearching} />
    </>
  )
}

const themes = [
  { value: 'light', label: 'Light', icon: <Sun aria-hidden /> },
  { value: 'dark', label: 'Dark', icon: <Moon aria-hidden /> },
  { value: 'system', label: 'System', icon: <Monitor aria-hidden /> },
] as const

function ThemeMenu() {
  const theme = useTheme()
  const icon = themes.find(({ value }) => value === theme)!.icon
  return (
    <Menu trigger={<IconButton label="Theme" icon={icon} />} entries={[]}>
      <MenuChoices<Theme> label="Theme" value={theme} choices={themes} onChange={setTheme} />
    </Menu>
  )
}

/** Phones and narrow windows: the navigation is a drawer. */
const Drawer = () => (
  <div className="lg:hidden">
    <NavigationDrawer label="Pages" className="w-[min(18rem,85vw)] overflow-y-auto pt-12">
      {(close) => (
        <>
          <Navigation onNavigate={close} />
          <div className="border-t border-line p-3">
            <Link to="/" className="flex h-11 items-center gap-2.5 px-2 text-muted">
              <ArrowLeft aria-hidden className="size-4" />
              Dashboard
            </Link>
          </div>
        </>
      )}
    </NavigationDrawer>
  </div>
)
