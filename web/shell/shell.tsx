// The frame around every page of someone who is signed in.

import { Link, Outlet, useRouter } from '@tanstack/react-router'
import { BookOpen, Braces, Search as SearchIcon, WifiOff } from 'lucide-react'
import { lazy, Suspense, useEffect, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { useConnection } from '../lib/connection.ts'
import { isSearchKey, searchKey } from '../lib/keys.ts'
import { queryClient } from '../lib/query.ts'
import { useSessionQuery } from '../lib/session.ts'
import { Announcer, SkipLink } from '../ui/announcer.tsx'
import { Brand } from '../ui/brand.tsx'
import { IconButton } from '../ui/button.tsx'
import { NavigationDrawer } from '../ui/drawer.tsx'
import { ErrorState, SkeletonLines } from '../ui/feedback.tsx'
import { Redirect } from '../ui/redirect.tsx'
import { AccountMenu } from './account-menu.tsx'
import { navigation } from './navigation.ts'

// What is searched is loaded when the search is opened for the first time.
const Search = lazy(() => import('./search.tsx'))

export function Shell() {
  const session = useSessionQuery()
  const [searching, setSearching] = useState<boolean>()
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (!isSearchKey(event)) return
      event.preventDefault()
      setSearching(true)
    }
    addEventListener('keydown', onKey)
    return () => removeEventListener('keydown', onKey)
  }, [])
  const onSearch = () => setSearching(true)
  if (session.data === null) return <ToSignIn />
  return (
    <>
      <SkipLink />
      <Announcer />
      <div className="flex min-h-dvh max-lg:flex-col">
        <TopBar onSearch={onSearch} />
        <aside className="sticky top-0 flex h-dvh w-58 shrink-0 flex-col border-r border-line bg-surface max-lg:hidden">
          <SideBar onSearch={onSearch} />
        </aside>
        <main id="main" tabIndex={-1} className="min-w-0 flex-1 outline-none">
          <ConnectionBanner />
          {session.data ? (
            <Outlet />
          ) : session.isError ? (
            <ErrorState error={session.error} retry={() => void session.refetch()} />
          ) : (
            <div className="mx-auto max-w-6xl px-6 py-8">
              <SkeletonLines lines={5} />
            </div>
          )}
        </main>
      </div>
      {searching !== undefined && session.data && (
        <Suspense>
          <Search open={searching} onOpenChange={setSearching} />
        </Suspense>
      )}
    </>
  )
}

function ToSignIn() {
  const { state } = useRouter()
  // Where the person was when this was first shown: the address changes on the way.
  const [address] = useState(state.location.href)
  return <Redirect to={address === '/' ? '/sign-in' : `/sign-in?next=${encodeURIComponent(address)}`} />
}

function SideBar({ onNavigate, onSearch }: { onNavigate?: (() => void) | undefined; onSearch?: () => void }) {
  return (
    <>
      <div className="px-4 py-4">
        <Link to="/" onClick={onNavigate} className="inline-flex rounded-md">
          <Brand />
        </Link>
      </div>
      {onSearch && (
        <div className="px-2 pb-2">
          <button
            type="button"
            onClick={onSearch}
            className={
              'focus-inset flex h-8.5 w-full items-center gap-2.5 rounded-md px-2.5 text-muted ring-1 ring-line ' +
              'ring-inset hover:bg-hover hover:text-ink'
            }
          >
            <SearchIcon aria-hidden className="size-4.5 shrink-0" />
            <span className="flex-1 text-left">Search</span>
            <kbd aria-hidden className="font-mono text-xs">
              {searchKey}
            </kbd>
          </button>
        </div>
      )}
      <Navigation onNavigate={onNavigate} />
      <div className="border-t border-line p-2">
        <AccountMenu />
      </div>
    </>
  )
}

const entryClass =
  'focus-inset flex h-8.5 items-center gap-2.5 rounded-md px-2.5 text-muted hover:bg-hover hover:text-ink ' +
  'any-pointer-coarse:h-11'

function Navigation({ onNavigate }: { onNavigate?: (() => void) | undefined }) {
  const scopes = useSessionQuery().data?.scopes
  return (
    <nav aria-label="Main" className="flex-1 overflow-y-auto px-2 pb-4">
      {navigation.map((group, index) => {
        const shown = group.filter(({ scope }) => !scope || scopes?.includes(scope))
        if (shown.length === 0) return null
        return (
          <ul key={group[0]!.to} className={classes('grid gap-0.5', index > 0 && 'mt-2 border-t border-line pt-2')}>
            {shown.map(({ to, label, icon: Icon, exact }) => (
              <li key={to}>
                <Link
                  to={to}
                  preload="intent"
                  activeOptions={{ exact: exact ?? false }}
                  onClick={onNavigate}
                  className={entryClass}
                  activeProps={{ className: 'bg-accent-soft! text-accent-ink! font-medium' }}
                >
                  <Icon aria-hidden className="size-4.5 shrink-0" />
                  {label}
                </Link>
              </li>
            ))}
          </ul>
        )
      })}
      <ul className="mt-2 grid gap-0.5 border-t border-line pt-2">
        <li>
          <Link to="/docs/$" params={{ _splat: 'overview' }} onClick={onNavigate} className={entryClass}>
            <BookOpen aria-hidden className="size-4.5 shrink-0" />
            Docs
          </Link>
        </li>
        <li>
          <Link to="/docs/api" onClick={onNavigate} className={entryClass}>
            <Braces aria-hidden className="size-4.5 shrink-0" />
            API reference
          </Link>
        </li>
      </ul>
    </nav>
  )
}

/** Phones and narrow windows: the navigation is a drawer. */
const TopBar = ({ onSearch }: { onSearch: () => void }) => (
  <div className="sticky top-0 z-30 flex h-13 items-center gap-2 border-b border-line bg-surface px-2 lg:hidden">
    <NavigationDrawer label="Navigation" className="flex w-[min(17rem,85vw)] flex-col">
      {(close) => <SideBar onNavigate={close} />}
    </NavigationDrawer>
    <Link to="/" className="rounded-md">
      <Brand />
    </Link>
    <IconButton label="Search" icon={<SearchIcon aria-hidden />} className="ml-auto" onClick={onSearch} />
  </div>
)

/** Says that the service is away, and that what is shown may be old; everything is asked again when it is back. */
function ConnectionBanner() {
  const connection = useConnection()
  const [wasLost, setWasLost] = useState(false)
  useEffect(() => {
    if (connection === 'lost') return setWasLost(true)
    if (wasLost) {
      setWasLost(false)
      void queryClient.invalidateQueries()
    }
  }, [connection, wasLost])
  return (
    <div role="status">
      {connection === 'lost' && (
        <p className="flex items-center justify-center gap-2 bg-warn-soft px-4 py-2 text-sm font-medium text-warn">
          <WifiOff aria-hidden className="size-4 shrink-0" />
          The service does not answer. What you see may be old. Trying again every 5 seconds.
        </p>
      )}
    </div>
  )
}
