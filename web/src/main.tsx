// The entry point of the dashboard: its styles and the application.

import "@xterm/xterm/css/xterm.css";

import "./style/base.css";
import "./style/components.css";
import "./style/session.css";
import "./style/session_tabs.css";

import "./app";
