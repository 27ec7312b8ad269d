import { useNavigate } from '@tanstack/react-router'
import { ChevronsUpDown, LogOut, Monitor, Moon, Settings, Sun } from 'lucide-react'
import { signOut, useSessionQuery } from '../lib/session.ts'
import { setTheme, type Theme, useTheme } from '../lib/theme.ts'
import { Skeleton } from '../ui/feedback.tsx'
import { Menu, MenuChoices } from '../ui/popups.tsx'
import { toast } from '../ui/toast.tsx'

const themes = [
  { value: 'light', label: 'Light', icon: <Sun aria-hidden /> },
  { value: 'dark', label: 'Dark', icon: <Moon aria-hidden /> },
  { value: 'system', label: 'System', icon: <Monitor aria-hidden /> },
] as const

/** Who is signed in, in which account; theme, settings, sign out. */
export function AccountMenu() {
  const { data: session } = useSessionQuery()
  const theme = useTheme()
  const navigate = useNavigate()
  if (!session) return <Skeleton className="h-11 w-full" />
  const { name, email, role, account } = session.profile
  const leave = async () => {
    try {
      await signOut()
      await navigate({ to: '/sign-in' })
    } catch (error) {
      toast.bad('You are still signed in', (error as Error).message)
    }
  }
  return (
    <Menu
      side="top"
      align="start"
      trigger={
        <button
          type="button"
          className={
            'focus-inset flex w-full items-center gap-2.5 rounded-md px-2 py-1.5 text-left hover:bg-hover ' +
            'data-popup-open:bg-hover'
          }
        >
          <span
            aria-hidden
            className={
              'grid size-7 shrink-0 place-items-center rounded-full bg-accent-soft text-sm font-semibold ' +
              'text-accent-ink'
            }
          >
            {initials(name)}
          </span>
          <span className="min-w-0 flex-1">
            <span className="block truncate font-medium">{name}</span>
            <span className="block truncate text-xs text-muted">{account.name}</span>
          </span>
          <ChevronsUpDown aria-hidden className="size-4 shrink-0 text-muted" />
        </button>
      }
      header={
        <>
          <p className="truncate font-medium">{name}</p>
          {email && <p className="truncate text-sm text-muted">{email}</p>}
          <p className="truncate text-sm text-muted">
            {account.name} · {role}
          </p>
        </>
      }
      entries={[
        { label: 'Settings', icon: <Settings aria-hidden />, onClick: () => void navigate({ to: '/settings' }) },
        { label: 'Sign out', icon: <LogOut aria-hidden />, onClick: () => void leave() },
      ]}
    >
      <MenuChoices<Theme> label="Theme" value={theme} choices={themes} onChange={setTheme} />
    </Menu>
  )
}

const initials = (name: string) =>
  name
    .split(/\s+/)
    .map((word) => [...word][0] ?? '')
    .slice(0, 2)
    .join('')
    .toUpperCase()
