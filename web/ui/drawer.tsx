import { Dialog } from '@base-ui/react/dialog'
import { Menu as MenuIcon, X } from 'lucide-react'
import { type ReactNode, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { IconButton } from './button.tsx'

/** The navigation of a phone or a narrow window: a button, and what it opens from the left. */
export function NavigationDrawer({
  label,
  className,
  children,
}: {
  label: string
  className?: string
  /** Gets what closes it: a link calls it. */
  children: (close: () => void) => ReactNode
}) {
  const [open, setOpen] = useState(false)
  return (
    <Dialog.Root open={open} onOpenChange={setOpen}>
      <Dialog.Trigger render={<IconButton label="Menu" icon={<MenuIcon aria-hidden />} />} />
      <Dialog.Portal>
        <Dialog.Backdrop
          className={
            'fixed inset-0 z-40 bg-black/45 transition-opacity duration-150 data-ending-style:opacity-0 ' +
            'data-starting-style:opacity-0'
          }
        />
        <Dialog.Popup
          aria-label={label}
          className={classes(
            'fixed inset-y-0 left-0 z-40 bg-surface shadow-pop outline-none transition-transform duration-150',
            'data-ending-style:-translate-x-full data-starting-style:-translate-x-full',
            className,
          )}
        >
          <Dialog.Close
            render={<IconButton label="Close" className="absolute top-3 right-2 z-10" icon={<X aria-hidden />} />}
          />
          {children(() => setOpen(false))}
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  )
}
